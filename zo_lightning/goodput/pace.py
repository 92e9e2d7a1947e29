"""How far training comes until a failure, and what it has saved by then: arithmetic, whatever the number of steps.

One arithmetic serves two callers. Where rounds do not bear on each other it takes all of them at once, as arrays; where
they do, one after the other, as plain numbers. Hence no ``if`` on a value: a condition is a factor of 0 or 1.
A stretch begins with every tier at a phase, the steps of its cycle that are over; no drain is in flight yet. Times are
seconds of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from zo_lightning.goodput.scenario import Scenario, Tier

NOTHING = -1  # no step

Counts = Any  # int, or int64 [F]
Seconds = Any  # float, or float64 [F]


def _positive(x: Any) -> Any:
    return np.maximum(x, 0) if isinstance(x, np.ndarray) else max(x, 0)


def _whole(x: Any) -> Any:
    return x.astype(np.int64) if isinstance(x, np.ndarray) else int(x)


@dataclass(frozen=True, slots=True)
class Cadence:
    """A tier's cycle in numbers.

    Attributes:
        steps: of a cycle, which ends with a save.
        drain: steps of it with a drain in flight, the last ones; 0: the save blocks.
        tax: share that these take longer.
        save: seconds of a blocking save after them.
        stale: steps that a checkpoint is old when it is complete.
    """

    steps: int
    drain: int
    tax: float
    save: float
    stale: int

    @classmethod
    def of(cls, scenario: Scenario, tier: Tier) -> Cadence:
        """What the tier says, or else the scenario."""
        job, blocking = scenario.job, scenario.target == "blocking"
        steps = tier.every or scenario.k
        drain = 0 if blocking else tier.drain_steps or job.drain_steps
        steps, drain = (steps, min(steps, drain)) if scenario.legacy_credit else (max(steps, drain), drain)
        stale = {"newest": 0, "median": drain // 2, "oldest": drain - 1, "none": drain, "blocking": 0}
        tax = 0.0 if blocking else job.tax if tier.tax is None else tier.tax
        save = 0.0 if not blocking else job.save_seconds if tier.save_seconds is None else tier.save_seconds
        return cls(steps, drain, tax, save, stale[scenario.target])

    @property
    def before(self) -> int:
        """Steps of a cycle before its save begins at the earliest."""
        return self.steps - max(self.drain, 1)

    def drained(self, steps: Counts) -> Counts:
        """Steps with a drain in flight among the first so many of a cycle and those that follow it."""
        return steps // self.steps * self.drain + _positive(steps % self.steps - (self.steps - self.drain))


@dataclass(frozen=True)
class Pace:
    """Steps and saves of a stretch.

    Attributes:
        cadences: one for each tier.
        step: seconds of a step without a drain.
        in_flight: whether a drain that a failure interrupts counts.
    """

    cadences: tuple[Cadence, ...]
    step: float
    in_flight: bool = False

    @cached_property
    def _average(self) -> float:
        """Seconds of a step, with its part of drains and saves."""
        drains = math.fsum(cadence.tax * cadence.drain / cadence.steps for cadence in self.cadences)
        return self.step * (1 + drains) + math.fsum(cadence.save / cadence.steps for cadence in self.cadences)

    @cached_property
    def _slack(self) -> int:
        """Steps by which a stretch can be off the average, at most."""
        off = math.fsum(
            self.step * cadence.tax * cadence.drain * (1 - cadence.drain / cadence.steps) + cadence.save
            for cadence in self.cadences
        )
        return 2 + math.ceil(off / self._average)

    def ended(self, steps: Counts, phases: Sequence[Counts]) -> Seconds:
        """When so many whole steps of the stretch are over."""
        slowed, stalled = steps, 0.0
        for cadence, phase in zip(self.cadences, phases, strict=True):
            if cadence.save:
                stalled = stalled + _positive(phase + steps - 1) // cadence.steps * cadence.save
            else:
                slowed = slowed + cadence.tax * cadence.drained(phase + steps)
        return slowed * self.step + stalled

    def whole_steps(self, seconds: Seconds, phases: Sequence[Counts]) -> Counts:
        """Whole steps of a stretch that lasts so long."""
        steps = _positive(_whole(seconds / self._average) - self._slack)
        for power in reversed(range((2 * self._slack + 1).bit_length())):
            steps = steps + (1 << power) * (self.ended(steps + (1 << power), phases) <= seconds)
        return steps

    def _saving(self, steps: Counts, phases: Sequence[Counts], tiers: int) -> Seconds:
        """Seconds from the end of a step until the blocking saves to the first so many tiers are over."""
        return sum(
            cadence.save * ((steps > 0) & ((phase + steps) % cadence.steps == 0))
            for cadence, phase in zip(self.cadences[:tiers], phases, strict=False)
        )

    def left(self, seconds: Seconds, steps: Counts, phases: Sequence[Counts]) -> Seconds:
        """Seconds of a stretch after so many whole steps."""
        return seconds - self.ended(steps, phases)

    def part(self, left: Seconds, steps: Counts, phases: Sequence[Counts]) -> Seconds:
        """How much of the step after so many whole ones is done in what is left, between 0 and 1."""
        length = self.step + self.step * sum(
            cadence.tax * ((phase + steps) % cadence.steps >= cadence.steps - cadence.drain)
            for cadence, phase in zip(self.cadences, phases, strict=True)
        )
        return _positive(left - self._saving(steps, phases, len(self.cadences))) / length

    def saved(self, tier: int, left: Seconds, steps: Counts, phases: Sequence[Counts]) -> Counts:
        """The newest step of the stretch that a tier has at the failure, or ``NOTHING``."""
        cadence, phase = self.cadences[tier], phases[tier]
        cycles, into = divmod(phase + steps, cadence.steps)
        if cadence.save:
            cycles = cycles - ((into == 0) & (steps > 0) & (left < self._saving(steps, phases, tier + 1)))
        step = cycles * cadence.steps - cadence.stale - phase
        saved = NOTHING + (step - NOTHING) * (cycles > 0)
        if self.in_flight and cadence.drain:
            before = cadence.steps - cadence.drain
            saved = saved + (steps - into + before - saved) * (into >= before)
        return saved
