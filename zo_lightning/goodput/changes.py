"""What single changes to a cluster or to its checkpoints would be worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from zo_lightning.goodput.model import Job
from zo_lightning.goodput.scenario import Scenario
from zo_lightning.goodput.tables import Row, has_closed_form, row, with_best_interval

_SWAP_SECONDS = 40.0  # that a restart takes where a device is replaced under a running job


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change and what it comes to.

    Attributes:
        name: what is changed.
        gain: points of goodput; below 0 for a loss.
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


def changes(base: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Single changes that could be made to a scenario, each with the interval that is best after it."""
    job, target = base.job, base.target
    restart, detection = job.restart_seconds, job.detection_seconds
    if _best(base).k != base.k:
        yield "the best interval", _best(base)
    if restart > _SWAP_SECONDS:
        seen = min(detection, _SWAP_SECONDS / 4)
        quick = replace(job, detection_seconds=seen, relaunch_seconds=_SWAP_SECONDS - seen)
        yield f"a restart in {_SWAP_SECONDS:g} s instead of {restart:g}", _best(base, job=quick)
    if detection:
        yield (
            f"failures noticed in {detection / 2:g} s instead of {detection:g}",
            _best(base, job=replace(job, detection_seconds=detection / 2)),
        )
    if job.relaunch_seconds:
        half = job.relaunch_seconds / 2
        yield f"relaunch in {half:g} s instead of {2 * half:g}", _best(base, job=replace(job, relaunch_seconds=half))
    yield "devices that fail half as often", _best(base, job=replace(job, mtbf_hours=2 * job.mtbf_hours))
    if target == "blocking":
        half = job.save_seconds / 2
        yield f"saves of {half:g} s instead of {2 * half:g}", _best(base, job=replace(job, save_seconds=half))
        yield "drains beside training, without reconcile", _best(base, target="none")
    else:
        yield from _better_drains(base, job)
    if target != "newest":
        yield "drains brought to their newest version", _best(base, target="newest")
    if base.spares is None:
        yield "no spare at hand", replace(base, spares=0)
    else:
        yield f"{2 * base.spares or 1} spares instead of {base.spares}", replace(base, spares=2 * base.spares or 1)


def _better_drains(base: Scenario, job: Job) -> Iterator[tuple[str, Scenario]]:
    if job.drain_steps > 1:
        half = math.ceil(job.drain_steps / 2)
        yield f"drains of {half} steps instead of {job.drain_steps}", _best(base, job=replace(job, drain_steps=half))
    if job.tax:
        tax = job.tax / 2
        yield f"a tax of {100 * tax:g} % instead of {200 * tax:g}", _best(base, job=replace(job, tax=tax))


def _best(base: Scenario, **changed: Any) -> Scenario:
    """The scenario with something changed and the best interval for it."""
    return with_best_interval(replace(base, **changed))


def _gain(before: Row, after: Row) -> float:
    """By the simulator, in which both had the same failures, where one of them has no closed form."""
    if after.simulated is None or before.simulated is None or (before.exact and after.exact):
        return after.goodput - before.goodput
    return after.simulated - before.simulated
