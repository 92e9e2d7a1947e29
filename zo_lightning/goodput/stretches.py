"""How far each stretch of training comes, and which checkpoints it leaves: arithmetic, whatever the number of steps.

Legend: F failures, T tiers. All times are seconds of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from zo_lightning.goodput.portable import Floats
from zo_lightning.goodput.scenario import Scenario, Tier

Ints = NDArray[np.int64]

NOTHING = -1


@dataclass(frozen=True)
class Cadence:
    """A tier's cycle in numbers: a save at the end of every ``steps`` steps."""

    steps: int
    drain: int
    tax: float
    save: float
    stale: int

    @classmethod
    def of(cls, scenario: Scenario, tier: Tier) -> Cadence:
        """What the tier says, or else the scenario; a drain that is credited early takes no longer than its cycle."""
        job, blocking = scenario.job, scenario.target == "blocking"
        steps = tier.every or scenario.k
        drain = 0 if blocking else tier.drain_steps or job.drain_steps
        steps, drain = (steps, min(steps, drain)) if scenario.legacy_credit else (max(steps, drain), drain)
        stale = {"newest": 0, "median": drain // 2, "oldest": drain - 1, "none": drain, "blocking": 0}
        tax = job.tax if tier.tax is None else tier.tax
        save = job.save_seconds if tier.save_seconds is None else tier.save_seconds
        return cls(steps, drain, tax, save if blocking else 0.0, stale[scenario.target])

    def drained(self, steps_F: Ints) -> Ints:
        """Steps with a drain in flight among the first so many."""
        return steps_F // self.steps * self.drain + np.maximum(steps_F % self.steps - (self.steps - self.drain), 0)


@dataclass(frozen=True)
class Stretches:
    """Stretches of training, each ended by a failure.

    Attributes:
        cadences: one for each tier.
        step: seconds of a step without a drain.
        seconds: float64 [F], how long each stretch lasts.
        phases: int64 [F], steps of the first cycle that are over when a stretch begins.
        in_flight: whether an interrupted drain counts.
    """

    cadences: tuple[Cadence, ...]
    step: float
    seconds: Floats
    phases: Ints
    in_flight: bool

    def _ended(self, steps_F: Ints) -> Floats:
        """When so many whole steps are over, counted from the beginning of a cycle."""
        slowed_F = steps_F.astype(np.float64)
        stalled_F: Floats | float = 0.0
        for cadence in self.cadences:
            if cadence.save:
                stalled_F = stalled_F + np.maximum(steps_F - 1, 0) // cadence.steps * cadence.save
            else:
                slowed_F = slowed_F + cadence.tax * cadence.drained(steps_F)
        return slowed_F * self.step + stalled_F

    @cached_property
    def _moment_F(self) -> Floats:
        return self.seconds + self._ended(self.phases)

    @cached_property
    def place_F(self) -> Ints:
        """Whole steps from the beginning of the first cycle to the failure."""
        slowest = self.step * (1 + sum(cadence.tax for cadence in self.cadences))
        slowest += sum(cadence.save / cadence.steps for cadence in self.cadences)
        low_F = np.maximum((self._moment_F / slowest).astype(np.int64) - 1, 0)
        high_F = (self._moment_F / self.step).astype(np.int64) + 2
        while (high_F - low_F).max() > 1:
            middle_F = (low_F + high_F) // 2
            ended_F = self._ended(middle_F) <= self._moment_F
            low_F, high_F = np.where(ended_F, middle_F, low_F), np.where(ended_F, high_F, middle_F)
        return low_F

    @cached_property
    def steps_F(self) -> Ints:
        """Whole steps of each stretch."""
        return self.place_F - self.phases

    @cached_property
    def _left_F(self) -> Floats:
        """Seconds from the end of the last whole step to the failure."""
        return self._moment_F - self._ended(self.place_F)

    def _saving(self, tier: int) -> Floats:
        """Seconds from there until the blocking saves to the first so many tiers are over."""
        saving_F = np.zeros_like(self.seconds)
        for cadence in self.cadences[:tier]:
            saving_F += np.where((self.place_F > 0) & (self.place_F % cadence.steps == 0), cadence.save, 0.0)
        return saving_F

    @cached_property
    def part_F(self) -> Floats:
        """How much of a step the failure interrupts, between 0 and 1."""
        saving_F = self._saving(len(self.cadences))
        length_F = self._ended(self.place_F + 1) - self._ended(self.place_F) - saving_F
        return np.maximum(self._left_F - saving_F, 0.0) / length_F

    def age(self, tier: int) -> Ints:
        """Steps that the failure takes if the cycle went on before the stretch."""
        cadence = self.cadences[tier]
        return self.place_F % cadence.steps + cadence.stale

    def saved(self, tier: int) -> Ints:
        """The newest step of the stretch that a tier has at the failure, or ``NOTHING``."""
        cadence = self.cadences[tier]
        cycles_F, into_F = np.divmod(self.place_F, cadence.steps)
        if cadence.save:
            cycles_F = cycles_F - ((into_F == 0) & (self._left_F < self._saving(tier + 1)))
        saved_F = np.where(cycles_F > 0, cycles_F * cadence.steps - cadence.stale, NOTHING)
        if self.in_flight and cadence.drain:
            before = cadence.steps - cadence.drain
            saved_F = np.where(into_F >= before, self.place_F - into_F + before, saved_F)
        return saved_F
