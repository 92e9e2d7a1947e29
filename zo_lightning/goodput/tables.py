"""Rows of the tables: what each plan on each cluster comes to, in per cent of the wall clock."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.closed import best_interval, closed_form, exact_form
from zo_lightning.goodput.failures import longest_gap
from zo_lightning.goodput.laws import law
from zo_lightning.goodput.model import TARGETS, Job, Target
from zo_lightning.goodput.scenario import Scenario
from zo_lightning.goodput.simulator import simulate

SCALES = (512, 2048, 8192, 16_384, 65_536)
LOSSES = ("rework", "restart", "tax", "stall", "idle")

Intervals = int | Mapping[str, int | Sequence[int]] | None
"""``k`` of every row, or that of each target, or of each target and number of devices; None for the best one."""

_DIGITS = 6  # of a row: what lies beyond differs from one mathematics library to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan on one cluster, in per cent of the wall clock, to six digits behind the point.

    ``goodput`` to ``idle`` are those of ``closed_form`` where the scenario has one, else those of the simulator. The
    shares add up to 1 exactly (``Shares``), the rounded per cents to 100 but for the last digit.

    Attributes:
        n: devices.
        k: steps from the beginning of one checkpoint to that of the next.
        law: the k of ``laws.law``; None if nothing fails.
        target: see ``Target``.
        goodput: see ``Shares``; so the next five.
        exact: goodput by ``exact_form``; None where that does not hold.
        simulated: goodput by the simulator; None if nothing was simulated.
        error: standard error of ``simulated``.
        serial: goodput by ``closed_form`` if drains take their time; given where ``goodput`` credits them early.
    """

    n: int
    k: int
    law: float | None
    target: Target
    goodput: float
    rework: float
    restart: float
    tax: float
    stall: float
    idle: float
    exact: float | None = None
    simulated: float | None = None
    error: float | None = None
    serial: float | None = None

    @property
    def surest(self) -> float:
        """Goodput by the way that is closest: ``exact``, or else ``goodput``."""
        return self.goodput if self.exact is None else self.exact


def cells(
    base: Scenario,
    *,
    devices: Sequence[int] = SCALES,
    targets: Sequence[Target] = TARGETS,
    intervals: Intervals = None,
) -> list[Scenario]:
    """The scenarios of a table: ``base`` with every number of devices and every target.

    Raises:
        ConfigError: for an interval that is shorter than a drain, which only ``legacy_credit`` credits, or a drain that
            is never complete.
    """
    found = []
    for number, n in enumerate(devices):
        for target in targets:
            scenario = checked(replace(base, job=replace(base.job, devices=n), target=target))
            k = _interval(intervals, target, number, len(devices))
            found.append(with_best_interval(scenario) if k is None else replace(scenario, k=_possible(scenario, k)))
    return found


def checked(scenario: Scenario) -> Scenario:
    """The scenario, if a drain can be complete in it: if it is not longer than any time between two failures.

    Raises:
        ConfigError: if it is, and is needed.
    """
    job, longest = scenario.job, longest_gap(scenario.failures, scenario.mtbf)
    needed = scenario.target != "blocking" and not (scenario.legacy_credit or scenario.survives_in_flight)
    rare = " or ".join(f"`goodput.{key}`" for key in scenario.failures.named())
    if needed and not scenario.tiers and job.drain_steps * scenario.step_seconds > longest:
        raise ConfigError(
            f"`goodput.drain_steps`={job.drain_steps}: with `goodput.step_seconds`={job.step_seconds:g} a drain takes "
            f"{job.drain_steps * scenario.step_seconds:.3g} s, and no two failures of {job.devices:,} devices are more "
            f"than {longest:.3g} s apart, so that none is ever complete: set fewer, or a longer {rare}"
        )
    return scenario


def with_best_interval(scenario: Scenario) -> Scenario:
    """The scenario with the interval for which ``closed_form`` gives the most, with its mean times.

    Raises:
        ConfigError: where hardly anything fails.
    """
    k = best_interval(_average(scenario), scenario.target, legacy_credit=scenario.legacy_credit)
    return replace(scenario, k=k)


def row(scenario: Scenario, *, failures: int = 0, seed: int = 0) -> Row:
    """One row of a table.

    Args:
        scenario: plan and cluster.
        failures: to simulate; 0 for the closed forms alone.
        seed: of the simulator.

    Raises:
        ConfigError: if nothing is simulated and there is no closed form.

    Examples:
        >>> found = row(Scenario(k=30, target="newest"))
        >>> round(found.goodput, 2), round(found.restart, 2)
        (92.84, 3.43)
    """
    job, k, target, legacy = scenario.job, scenario.k, scenario.target, scenario.legacy_credit
    plain = has_closed_form(scenario)
    if not plain and not failures:
        raise ConfigError(
            "`failures`=0, but only exponential failures with a spare at hand have a closed form: simulate"
        )
    estimate = simulate(scenario, failures=failures, seed=seed) if failures else None
    shares = estimate.shares if estimate and not plain else closed_form(job, k, target, legacy_credit=legacy)
    exact = exact_form(job, k, target).goodput if plain and not legacy else None
    by_law = law(_average(scenario), target)
    return Row(
        n=job.devices,
        k=k,
        law=round(by_law, _DIGITS) if math.isfinite(by_law) else None,
        target=target,
        **{name: round(100 * value, _DIGITS) for name, value in asdict(shares).items()},
        exact=_percent(exact),
        simulated=_percent(estimate.shares.goodput if estimate else None),
        error=_percent(estimate.errors.goodput if estimate else None),
        serial=_percent(closed_form(job, k, target).goodput) if legacy and plain else None,
    )


def has_closed_form(scenario: Scenario) -> bool:
    """Whether failures are exponential, one at a time, with a spare at hand, and all is restored from one place."""
    plain = Scenario(job=scenario.job, k=scenario.k, target=scenario.target, legacy_credit=scenario.legacy_credit)
    return scenario == plain


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows of the same keys as CSV, with all their digits."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _average(scenario: Scenario) -> Job:
    """The job with the mean times of the scenario: all that fails put on the devices, stragglers on the steps."""
    hours = scenario.mtbf * scenario.job.devices / 3600
    return replace(scenario.job, mtbf_hours=hours, step_seconds=scenario.step_seconds)


def _possible(scenario: Scenario, k: int) -> int:
    drain = scenario.job.drain_steps
    if k < drain and scenario.target != "blocking" and not scenario.legacy_credit:
        raise ConfigError(
            f"`k`={k}: a drain takes {drain} steps, so none is complete {k} steps after it began: set `k`={drain} or "
            "more, or a shorter `goodput.drain_steps`"
        )
    return k


def _interval(intervals: Intervals, target: Target, number: int, count: int) -> int | None:
    if intervals is None or isinstance(intervals, int):
        return intervals
    given = intervals.get(target)
    if given is None or isinstance(given, int):
        return given
    if len(given) != count:
        raise ConfigError(f"`k.{target}` has {len(given)} intervals for {count} `devices`: give one for each")
    return given[number]


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, _DIGITS)
