"""How to checkpoint a run, in sentences with figures, out of what it has measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from zo_lightning.goodput.checks import refuse, refuse_outside
from zo_lightning.goodput.known import FirstOrder, Journalled, complete
from zo_lightning.goodput.measured import Measured
from zo_lightning.goodput.model import TARGETS, Target
from zo_lightning.goodput.plans import Plan, first_order, journalled
from zo_lightning.goodput.sentences import of_measured, of_plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do.

    Attributes:
        plan: the best one, or the one that was asked about.
        others: further ones, for comparison.
        sentences: for a person.
        known: what they rest on.
    """

    plan: Plan
    others: tuple[Plan, ...]
    sentences: tuple[str, ...]
    known: FirstOrder | Journalled

    def facts(self) -> dict[str, Any]:
        """The figures by name; shares are in per cent, times in seconds."""
        plan, known = self.plan, self.known
        return {
            "way": plan.way,
            "k": plan.k,
            "target": plan.target,
            "steps_lost": round(plan.steps_lost, 3),
            "seconds_lost": round(plan.seconds_lost, 3),
            **{name: round(100 * share, 4) for name, share in asdict(plan.shares).items()},
            "goodput_interval": [round(100 * plan.goodput.low, 4), round(100 * plan.goodput.high, 4)],
            "mtbf_seconds": known.mtbf.value,
            "mtbf_interval": [known.mtbf.low, known.mtbf.high],
            "step_seconds": known.step.value,
            "step_interval": [known.step.low, known.step.high],
            "restart_seconds": known.restart.value,
            "restart_interval": [known.restart.low, known.restart.high],
            "tax_interval": [round(100 * plan.tax.low, 4), round(100 * plan.tax.high, 4)],
            "failures": known.found.failures,
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
        ('drain', 52, 'newest', 93.34)
    """
    _check(k, target, rto_seconds)
    known = complete(found)
    if isinstance(known, Journalled):
        plans = journalled(known, k, target, rto_seconds)
    else:
        plans = first_order(known, k, target, rto_seconds)
    sentences = (*of_measured(known), *of_plans(known, plans, k))
    return Advice(plan=plans[0], others=tuple(plans[1:]), sentences=sentences, known=known)


def _check(k: int | None, target: Target | None, rto_seconds: float | None) -> None:
    if k is not None:
        refuse_outside("k", k, 1)
    if target is not None and target not in TARGETS:
        refuse("target", target, f"choose one of {', '.join(TARGETS)}")
    if rto_seconds is not None:
        refuse_outside("rto_seconds", rto_seconds, 0, above=True)
