"""What single changes to a cluster or to its checkpoints would be worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from zo_lightning.goodput.scenario import Scenario
from zo_lightning.goodput.tables import Row, has_closed_form, row, with_best_interval

_SWAP_SECONDS = 40.0  # that a restart takes where a device is replaced under a running job


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change and what it comes to.

    Attributes:
        name: what is changed.
        gain: points of goodput, by ``exact_form`` where that holds; below 0 for a loss.
        row: with the change.
    """

    name: str
    gain: float
    row: Row


def what_if(
    base: Scenario, *, failures: int = 0, seed: int = 0, on_row: Callable[[], None] = lambda: None
) -> tuple[Row, list[Change]]:
    """The base, and single changes to it by what they are worth, the best first.

    Each has the interval that is best for it. All are simulated with the same seed.

    Args:
        base: plan and cluster.
        failures: to simulate; with 0, changes that have no closed form are left out.
        seed: of the simulator.
        on_row: called after each.

    Examples:
        >>> before, changes = what_if(Scenario(k=52, target="none"))
        >>> for change in changes[:2]:
        ...     print(f"{change.name}: {change.gain:.1f}")
        devices that fail half as often: 3.5
        a restart in 40 s instead of 390: 2.9
    """
    before = row(base, failures=failures, seed=seed)
    found = []
    for name, scenario in changes(base):
        if failures or has_closed_form(scenario):
            after = row(scenario, failures=failures, seed=seed)
            found.append(Change(name=name, gain=_gain(before, after), row=after))
        on_row()
    return before, sorted(found, key=lambda change: -change.gain)


def changes(base: Scenario) -> list[tuple[str, Scenario]]:
    """Single changes that could be made to a scenario, each with the interval that is best after it."""
    return [(name, _best(base, **changed)) for name, changed, sensible in _candidates(base) if sensible]


def _candidates(base: Scenario) -> list[tuple[str, dict[str, Any], bool]]:
    """What a change is called, the fields it changes, and whether it is one."""
    job, blocking = base.job, base.target == "blocking"
    restart, seen = job.restart_seconds, min(job.detection_seconds, _SWAP_SECONDS / 4)
    detection, relaunch, save, tax = (
        value / 2 for value in (job.detection_seconds, job.relaunch_seconds, job.save_seconds, job.tax)
    )
    drain, spares = math.ceil(job.drain_steps / 2), 2 * (base.spares or 0) or 1

    def job_with(**changed: float) -> dict[str, Any]:
        return {"job": replace(job, **changed)}  # type: ignore[arg-type]

    return [
        ("the best interval", {}, _best(base).k != base.k),
        (
            f"a restart in {_SWAP_SECONDS:g} s instead of {restart:g}",
            job_with(detection_seconds=seen, relaunch_seconds=_SWAP_SECONDS - seen),
            restart > _SWAP_SECONDS,
        ),
        (
            f"failures noticed in {detection:g} s instead of {2 * detection:g}",
            job_with(detection_seconds=detection),
            detection > 0,
        ),
        (f"relaunch in {relaunch:g} s instead of {2 * relaunch:g}", job_with(relaunch_seconds=relaunch), relaunch > 0),
        ("devices that fail half as often", job_with(mtbf_hours=2 * job.mtbf_hours), True),
        (f"saves of {save:g} s instead of {2 * save:g}", job_with(save_seconds=save), blocking and save > 0),
        ("drains beside training, without reconcile", {"target": "none"}, blocking),
        (
            f"drains of {drain} steps instead of {job.drain_steps}",
            job_with(drain_steps=drain),
            not blocking and job.drain_steps > 1,
        ),
        (f"a tax of {100 * tax:g} % instead of {200 * tax:g}", job_with(tax=tax), not blocking and tax > 0),
        ("drains brought to their newest version", {"target": "newest"}, base.target != "newest"),
        ("no spare at hand", {"spares": 0}, base.spares is None),
        (f"{spares} spares instead of {base.spares}", {"spares": spares}, base.spares is not None),
    ]


def _best(base: Scenario, **changed: Any) -> Scenario:
    """The scenario with something changed and the best interval for it."""
    return with_best_interval(replace(base, **changed))


def _gain(before: Row, after: Row) -> float:
    """By the simulator, in which both had the same failures, where one of them has no closed form."""
    if after.simulated is None or before.simulated is None or None not in (before.exact, after.exact):
        return round(after.surest - before.surest, 6)
    return round(after.simulated - before.simulated, 6)
