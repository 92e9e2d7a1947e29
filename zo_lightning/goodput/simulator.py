"""The simulator: one round for each failure, so that its cost grows with failures and never with steps.

A round is a stretch of training, the failure that ends it, and what passes until the next stretch begins.
Legend: F failures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zo_lightning.goodput import portable
from zo_lightning.goodput.checks import refuse, refuse_outside
from zo_lightning.goodput.estimate import Estimate, ratio
from zo_lightning.goodput.failures import draw_gaps, draw_kinds
from zo_lightning.goodput.model import Shares
from zo_lightning.goodput.pace import Cadence, Pace
from zo_lightning.goodput.rounds import Rounds, destroyed, early_credit, idle_seconds, many_tiers, one_tier
from zo_lightning.goodput.scenario import Scenario, Tier

MOST_FAILURES = 10_000_000  # a gigabyte
_COUNTABLE = 2.0**50  # steps between two failures
_NONE = Shares(goodput=0.0, rework=0.0, restart=0.0, tax=0.0)


def simulate(scenario: Scenario, *, failures: int = 1000, seed: int = 0) -> Estimate:
    """Follow a job through its failures.

    Scenarios that are simulated with one seed see the same failures, scaled to their mean time between failures, so
    their difference is far more certain than either.

    Args:
        scenario: see ``Scenario``.
        failures: rounds to simulate, from 2 to ten million; a trace that is shorter is gone through again.
        seed: 0 or more; the same seed gives the same bytes on every machine.

    Raises:
        ConfigError: for an argument out of its range.

    Examples:
        >>> found = simulate(Scenario(k=30), failures=10_000)
        >>> round(100 * found.shares.goodput, 1), round(100 * found.errors.goodput, 2)
        (92.8, 0.04)
    """
    refuse_outside("failures", failures, 2, MOST_FAILURES)
    refuse_outside("seed", seed, 0, 2**64 - 1)
    mean = scenario.mtbf
    tiers = scenario.tiers or (Tier(name="all"),)
    pace = Pace(tuple(Cadence.of(scenario, tier) for tier in tiers), scenario.step_seconds, scenario.survives_in_flight)
    if math.isinf(mean):
        return _endless(scenario, pace.cadences)
    gaps_F = draw_gaps(scenario.failures, mean, failures, seed)
    if gaps_F.max() / scenario.step_seconds > _COUNTABLE:
        key = "trace" if scenario.failures.law == "trace" else "mtbf_hours"
        steps = f"steps of `goodput.step_seconds`={scenario.job.step_seconds:g}"
        refuse(f"goodput.{key}", float(gaps_F.max()), f"seconds between failures are more {steps} than can be counted")
    kinds_F = draw_kinds(scenario.failures, scenario.job, failures, seed)
    alone = len(tiers) == 1 and min(tiers[0].survival) == 1
    if scenario.legacy_credit and scenario.target != "blocking":  # credit is a matter of drains
        rounds = early_credit(pace, gaps_F, seed)
    elif alone:
        rounds = one_tier(pace, tiers[0].load_seconds, gaps_F)
    else:
        rounds = many_tiers(pace, tiers, gaps_F, destroyed(tiers, kinds_F, seed))
    idle_F = idle_seconds(scenario, rounds, kinds_F)
    return _account(scenario, rounds, idle_F, independent=alone and scenario.spares is None)


def _endless(scenario: Scenario, cadences: Sequence[Cadence]) -> Estimate:
    """A cluster that never fails."""
    step, slowed = scenario.job.step_seconds, scenario.step_seconds
    tax = slowed * math.fsum(cadence.tax * cadence.drain / cadence.steps for cadence in cadences)
    stall = math.fsum([slowed - step, *(cadence.save / cadence.steps for cadence in cadences)])
    total = math.fsum([step, tax, stall])
    shares = Shares.of(
        {"goodput": step / total, "rework": 0.0, "restart": 0.0, "tax": tax / total, "stall": stall / total}
    )
    return Estimate(shares=shares, errors=_NONE, failures=0, steps_lost=0.0, seconds=math.inf)


def _account(scenario: Scenario, rounds: Rounds, idle_F: portable.Floats, *, independent: bool) -> Estimate:
    """Where the time of all rounds went."""
    count, step, slowed = len(idle_F), scenario.job.step_seconds, scenario.step_seconds
    steps_lost = math.fsum(rounds.lost.tolist()) / count
    if math.isinf(scenario.job.restart_seconds):
        nothing = replace(_NONE, restart=1.0)
        return Estimate(shares=nothing, errors=_NONE, failures=count, steps_lost=steps_lost, seconds=math.inf)
    done_F = rounds.steps + rounds.part
    beyond_F = rounds.seconds - done_F * slowed  # of drains, or of blocking saves
    blocking = scenario.target == "blocking"
    restart_F = scenario.job.restart_seconds + rounds.load
    parts: dict[str, portable.Floats] = {
        "goodput": step * (rounds.steps - rounds.lost).astype(np.float64),
        "rework": (rounds.lost + rounds.part) * step,
        "restart": restart_F,
        "tax": np.zeros(count) if blocking else beyond_F,
        "stall": done_F * (slowed - step) + blocking * beyond_F,
        "idle": idle_F,
    }
    round_F = rounds.seconds + restart_F + idle_F
    trace = scenario.failures.trace if scenario.failures.law == "trace" else ()
    found = {
        name: ratio(part_F, round_F, independent=independent, distinct=min(len(trace) or count, count))
        for name, part_F in parts.items()
    }
    errors = Shares(**{name: error for name, (_, error) in found.items()})
    return Estimate(
        shares=Shares.of({name: share for name, (share, _) in found.items()}),
        errors=errors,
        failures=count,
        steps_lost=steps_lost,
        seconds=math.fsum(round_F.tolist()),
    )
