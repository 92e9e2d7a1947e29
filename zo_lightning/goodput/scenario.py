"""One cell of a table: a job, how it is checkpointed, and what befalls it.

The rule of a stretch, which is the training between two restarts: a stretch begins with the restored checkpoint, which
is as new as the state (age 0), and with a cycle of k steps. A cycle ends with its save. A blocking save follows its k
steps; an asynchronous drain goes along with the last D of them and counts from the end of the cycle on. Since drains
come one at a time, k below D is D. A failure during the step after n whole ones of a stretch, with ``n < k``, takes all
n; otherwise it takes ``n % k`` and the target's staleness. The drain in flight is lost. The clock of failures runs
while the job trains or saves; it stands still during restarts and while the job waits for a device.

Of several tiers each has its own cycle, counted from the newest checkpoint that it holds, so that the cycle of a slow
tier goes on through restarts from a fast one; a drain that was interrupted begins anew. A tier that has lost what it
held drains at once, or saves after the next step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.checks import COUNTABLE, refuse, refuse_outside
from zo_lightning.goodput.failures import KINDS, Failures
from zo_lightning.goodput.model import TARGETS, Job, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A place for checkpoints. What it does not say, it has from the job.

    Attributes:
        name: for messages.
        every: steps of its cycle (None: the scenario's k).
        drain_steps: steps that a drain to it takes, at least 1 (None: the job's).
        tax: share that a step takes longer meanwhile; the taxes of several tiers add up (None: the job's).
        save_seconds: that a blocking save to it takes (None: the job's).
        load_seconds: that a restart from it takes beyond the relaunch.
        survives_device: probability that what it holds outlives the failure of a device.
        survives_rack: of a rack.
        survives_switch: of a switch.

    Raises:
        ConfigError: for a number out of its range.
    """

    name: str
    every: int | None = None
    drain_steps: int | None = None
    tax: float | None = None
    save_seconds: float | None = None
    load_seconds: float = 0.0
    survives_device: float = 1.0
    survives_rack: float = 1.0
    survives_switch: float = 1.0

    def __post_init__(self) -> None:
        for key, low in (("every", 1), ("drain_steps", 1), ("tax", 0), ("save_seconds", 0), ("load_seconds", 0)):
            if getattr(self, key) is not None:
                refuse_outside(f"goodput.tiers.{self.name}.{key}", getattr(self, key), low, COUNTABLE)
        for kind in KINDS:
            refuse_outside(f"goodput.tiers.{self.name}.survives_{kind}", getattr(self, f"survives_{kind}"), 0, 1)

    @property
    def survival(self) -> tuple[float, float, float]:
        """Probabilities to outlive a failure of each kind."""
        return self.survives_device, self.survives_rack, self.survives_switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that the simulator needs.

    Attributes:
        job: see ``Job``.
        k: steps of a cycle, from the beginning of one drain to that of the next.
        target: see ``Target``.
        legacy_credit: the accounting of the table that ``docs/goodput.md`` compares with: a drain counts after k steps
            though it takes D, and the cycle goes on through restarts, so a failure finds every step of it with the
            same probability, and the checkpoint it falls back to may be older than the stretch. Blocking saves
            count as ever.
        survives_in_flight: a drain that a failure interrupts still gives the state of its first step, as with hosts or
            peers that finish what they have; if its tier survives.
        failures: see ``Failures``.
        tiers: fastest to load first; a restart takes the newest checkpoint that survives. None at all: one tier with
            the job's costs that survives everything.
        spares: devices that stand ready (None: there is always one).
        repair_seconds: from a failure until its devices are spares again.
        straggler_share: share of the training time in which some device is slow.
        straggler_slowdown: times as long as usual that a step takes then. Such spells are short beside the time between
            failures, so every step is as long as the average one.

    Raises:
        ConfigError: for a number out of its range, or a mixture that has no meaning.
    """

    job: Job = field(default_factory=Job)
    k: int
    target: Target = "newest"
    legacy_credit: bool = False
    survives_in_flight: bool = False
    failures: Failures = field(default_factory=Failures)
    tiers: tuple[Tier, ...] = ()
    spares: int | None = None
    repair_seconds: float = 14_400.0
    straggler_share: float = 0.0
    straggler_slowdown: float = 1.0

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ConfigError(f"`target`={self.target}: choose one of {', '.join(TARGETS)}")
        refuse_outside("k", self.k, 1, COUNTABLE)
        if self.k % 1:
            refuse("k", self.k, "a whole number of steps")
        if self.spares is not None:
            refuse_outside("goodput.spares", self.spares, 0)
        refuse_outside("goodput.repair_seconds", self.repair_seconds, 0, 1e15)
        refuse_outside("goodput.straggler_share", self.straggler_share, 0, 1)
        refuse_outside("goodput.straggler_slowdown", self.straggler_slowdown, 1)
        if self.legacy_credit and (self.tiers or self.survives_in_flight):
            raise ConfigError("`legacy_credit=true` knows neither `goodput.tiers` nor drains that survive")
        if math.isinf(self.straggler_slowdown) and self.straggler_share == 1:
            refuse(
                "goodput.straggler_slowdown", math.inf, "no step would ever end; make `goodput.straggler_share` less"
            )

    @property
    def step_seconds(self) -> float:
        """Of a step without a drain, stragglers included."""
        return self.job.step_seconds / (1 - self.straggler_share * (1 - 1 / self.straggler_slowdown))

    @property
    def mtbf(self) -> float:
        """Mean seconds of training between two failures, of whatever kind."""
        return self.failures.mtbf(self.job)
