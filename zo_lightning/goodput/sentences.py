"""What an advice says to a person."""

from __future__ import annotations

from collections.abc import Sequence

from zo_lightning.goodput.intervals import Interval
from zo_lightning.goodput.known import FirstOrder, Journalled, Known
from zo_lightning.goodput.model import Shares
from zo_lightning.goodput.plans import Plan
from zo_lightning.goodput.ways import SLACK, fits_slack
from zo_lightning.goodput.words import per_cent, seconds, size, within

_NAMES = {"drain": "a drain", "snapshot": "plain snapshots", "blocking": "saves that training waits for"}


def of_measured(known: Known) -> list[str]:
    """What the advice rests on."""
    found = known.found
    step = f", from {found.steps:,} steps" if _is_uncertain(known.step) else ", as given"
    seen = f", from {found.failures} in {seconds(found.training)} of training"
    failures = seen if _is_uncertain(known.mtbf) else ", as given"
    lines = [
        f"A step takes {within(known.step, seconds)}{step}.",
        f"A failure comes every {within(known.mtbf, seconds)}{failures}.",
        _restart(known),
    ]
    if found.way is not None and not found.tells_slowdown:
        lines.append("By how much a snapshot on its way slows steps could not be told yet, and counts as nothing.")
    if found.shares is not None:
        again = f"; {found.redone:,} steps were made again" if found.redone else ""
        lines.append(f"So far the run had {per_cent(found.shares.goodput)} goodput: {_losses(found.shares)}{again}.")
        if found.shares.idle:
            lines.append(
                f"What follows is without the {per_cent(found.shares.idle)} in which nobody had started the run again: "
                "`supervise=true` does at once."
            )
    return lines


def _restart(known: Known) -> str:
    number = known.found.restarts
    seen = f", from {number} restart{'s' * (number > 1)}" if number else ""
    if known.detection is None:
        return f"A restart takes {within(known.relaunch, seconds)}{seen}, from the last sign of life to training."
    return (
        f"It takes {within(known.detection, seconds)} to be noticed and {within(known.relaunch, seconds)} more until "
        f"training goes on{seen}."
    )


def of_plans(known: FirstOrder | Journalled, plans: Sequence[Plan], asked: int | None) -> list[str]:
    """The first plan, what to expect of it, and the others beside it.

    Args:
        known: what they rest on.
        plans: the best first.
        asked: steps between checkpoints that were asked for.
    """
    plan, *others = plans
    lines = _journal(known, plan, asked) if isinstance(known, Journalled) else [_first_order(known, plan)]
    if asked is not None and asked < plan.k:
        lines.append(f"`k`={asked} is {plan.k}: the next one cannot begin before this one is done.")
    lost = (
        f"lose {plan.steps_lost:.1f} steps with a failure" if plan.way != "journal" else "lose no step with a failure"
    )
    return [
        *lines,
        f"Expect to {lost}, and to be where the run was after at most {seconds(plan.seconds_lost)}.",
        f"Expect {within(plan.goodput, per_cent)} goodput: {_losses(plan.shares)}.",
        *_covered(known, plan),
        *(f"Instead, {_NAMES[p.way]} {_every(p.k)}: {per_cent(p.shares.goodput)}." for p in others),
    ]


def _covered(known: Known, plan: Plan) -> list[str]:
    """What the interval of goodput is made of."""
    parts = {
        "the time of a step": known.step,
        "the time between failures": known.mtbf,
        "restarts": known.restart,
        "the tax": plan.tax,
    }
    uncertain = [name for name, interval in parts.items() if _is_uncertain(interval)]
    if not uncertain:
        return []
    return [f"The interval is that of {', '.join(uncertain)}; all else counts as certain, also what was seen once."]


def _first_order(known: FirstOrder, plan: Plan) -> str:
    every = f"{_every(plan.k)} ({seconds(plan.k * plan.job.step_seconds)})"
    if plan.way == "snapshot" and known.copy is not None:
        copy = seconds(known.copy.seconds)
        return (
            f"Take plain snapshots {every}: copying {size(known.copy.state_bytes)} takes {copy}, which "
            f"{'fits' if fits_slack(known) else 'does not fit'} {per_cent(SLACK)} of a step. They are durable "
            f"{plan.job.drain_steps} steps later."
        )
    if plan.way == "blocking" or known.drain is None:
        return f"Stop and save {every}: it takes {seconds(plan.job.save_seconds)}."
    how = "to the version of its first step" if plan.target == "none" else f"brought to its {plan.target} version"
    always = "continuously, " if plan.k == plan.job.drain_steps else ""
    late = f" It is durable {known.drain.late} steps later." if known.drain.late else ""
    return (
        f"Drain {always}{every}, {how}: it takes {plan.job.drain_steps} steps and slows them by "
        f"{within(plan.tax, per_cent)}.{late}"
    )


def _journal(known: Journalled, plan: Plan, asked: int | None) -> list[str]:
    every = f"{_every(plan.k)} ({seconds(plan.k * plan.job.step_seconds)})"
    snapshots = f"A snapshot pays {every}; a run that is shorter needs none."
    return [
        "The journal holds every step: a failure loses at most the one in flight, whose time counts as restart, and a "
        "restart applies the others.",
        f"The journal slows steps by {within(plan.tax, per_cent)}; to apply one takes {seconds(known.replay)}, a "
        f"snapshot of the factors {seconds(known.snapshot)}.",
        snapshots if asked is None else f"Take a snapshot {every}.",
    ]


def _every(k: int) -> str:
    return "every step" if k == 1 else f"every {k:,} steps"


def _is_uncertain(interval: Interval) -> bool:
    return interval.low < interval.high


def _losses(shares: Shares) -> str:
    named = {"rework": shares.rework, "restarts": shares.restart, "tax": shares.tax, "stalls": shares.stall}
    idle = {"idle": shares.idle} if shares.idle else {}
    return ", ".join(f"{per_cent(share)} {name}" for name, share in {**named, **idle}.items())
