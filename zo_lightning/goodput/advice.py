"""How to checkpoint a run, in sentences with figures, out of what it has measured."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.measured import FEWEST_STEPS, Measured
from zo_lightning.goodput.model import TARGETS, Target
from zo_lightning.goodput.plans import Plan, first_order, journalled
from zo_lightning.goodput.sentences import of_measured, of_plans
from zo_lightning.goodput.words import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do.

    Attributes:
        plan: the best one, or the one that was asked about.
        others: further ones, for comparison.
        sentences: for a person.
        measured: what they rest on.
    """

    plan: Plan
    others: tuple[Plan, ...]
    sentences: tuple[str, ...]
    measured: Measured

    def facts(self) -> dict[str, Any]:
        """The figures by name; shares are in per cent, times in seconds."""
        plan, found = self.plan, self.measured
        assert found.mtbf is not None and found.step is not None
        return {
            "way": plan.way,
            "k": plan.k,
            "target": plan.target,
            "steps_lost": round(plan.steps_lost, 3),
            "seconds_lost": round(plan.seconds_lost, 3),
            **{name: round(100 * share, 4) for name, share in asdict(plan.shares).items()},
            "goodput_interval": [round(100 * plan.goodput.low, 4), round(100 * plan.goodput.high, 4)],
            "mtbf_seconds": found.mtbf.value,
            "mtbf_interval": [found.mtbf.low, found.mtbf.high],
            "step_seconds": found.step.value,
            "step_interval": [found.step.low, found.step.high],
            "failures": found.failures,
            "others": {other.way: round(100 * other.goodput.value, 4) for other in self.others},
        }


def advise(
    found: Measured, *, k: int | None = None, target: Target | None = None, rto_seconds: float | None = None
) -> Advice:
    """The best way to checkpoint a run, or what to expect of the one that is asked about.

    A plain snapshot is best where copying it fits the slack of a step; else what gives the most goodput.

    Args:
        found: what is known of it.
        k: steps between checkpoints, instead of the best number.
        target: of a drain, or ``blocking``, instead of the best.
        rto_seconds: from a failure until the run is where it was, at most.

    Raises:
        ConfigError: if too little is known, naming the flags that say the rest, or for a plan that cannot be.

    Examples:
        >>> job = Measured().given(step_seconds=7.0, mtbf_hours=50_000, devices=16_384, drain_steps=30, tax=0.03,
        ...     save_seconds=210.0, detection_seconds=30.0, relaunch_seconds=360.0)
        >>> plan = advise(job).plan
        >>> plan.way, plan.k, plan.target, round(100 * plan.shares.goodput, 2)
        ('drain', 52, 'newest', 93.33)
    """
    _check(k, target, rto_seconds)
    _check_complete(found)
    plans = (journalled if found.way == "journal" else first_order)(found, k, target, rto_seconds)
    sentences = (*of_measured(found), *of_plans(found, plans, k))
    return Advice(plan=plans[0], others=tuple(plans[1:]), sentences=sentences, measured=found)


def _check(k: int | None, target: Target | None, rto_seconds: float | None) -> None:
    if k is not None and k < 1:
        raise ConfigError(f"`k`={k}: a number of steps, 1 or more")
    if target is not None and target not in TARGETS:
        raise ConfigError(f"`target`={target}: choose one of {', '.join(TARGETS)}")
    if rto_seconds is not None and not rto_seconds > 0:
        raise ConfigError(f"`rto_seconds`={rto_seconds}: a number above 0")


def _check_complete(found: Measured) -> None:
    """Raise ``ConfigError`` with all that has to be given."""
    reasons: dict[str, list[str]] = {}
    for key, value, reason in _wanted(found):
        if value is None:
            reasons.setdefault(reason, []).append(f"`{key}`")
    if reasons:
        lines = "; ".join(f"{reason}: give {', '.join(keys)}" for reason, keys in reasons.items())
        raise ConfigError(f"{found.source}: too little is known. {lines[0].upper()}{lines[1:]}")


def _wanted(found: Measured) -> list[tuple[str, object, str]]:
    """Flag, what is known without it, and why nothing is."""
    known = found.mtbf if found.mtbf is not None and math.isfinite(found.mtbf.value) else None
    unseen = "nothing says how often it fails"
    if found.mtbf is not None:
        unseen = (
            f"no failure was seen in {seconds(found.training)} of training, so that with 95 % confidence one "
            f"comes less often than every {seconds(found.mtbf.low)}"
        )
    wanted = [
        ("step_seconds", found.step, f"{found.steps} steps were timed, of {FEWEST_STEPS} that make a mean"),
        ("mtbf_hours", known, unseen),
        ("detection_seconds", found.detection, "no restart was seen"),
        ("relaunch_seconds", found.relaunch, "no restart was seen"),
        ("tax", found.tax, "no checkpoint was completed"),
    ]
    if found.way == "journal":
        return [
            *wanted,
            ("snapshot_seconds", found.snapshot, "no checkpoint was completed"),
            ("replay_seconds", found.replay, f"fewer than {FEWEST_STEPS} steps were taken from the journal"),
        ]
    no_drain = "no checkpoint was completed"
    return [*wanted, ("drain_steps", found.drain_steps, no_drain), ("save_seconds", found.save, no_drain)]
