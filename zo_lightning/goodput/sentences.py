"""What an advice says to a person."""

from __future__ import annotations

from collections.abc import Sequence

from zo_lightning.goodput.measured import Measured
from zo_lightning.goodput.model import Shares
from zo_lightning.goodput.plans import SLACK, Plan, copy_seconds, fits_slack
from zo_lightning.goodput.words import per_cent, seconds, size, within

_NAMES = {"drain": "a drain", "snapshot": "plain snapshots", "blocking": "saves that training waits for"}


def of_measured(found: Measured) -> list[str]:
    """What the advice rests on."""
    assert found.step is not None and found.mtbf is not None
    assert found.detection is not None and found.relaunch is not None
    step = f", from {found.steps:,} steps" if found.step.low < found.step.high else ", as given"
    seen = f", from {found.failures} in {seconds(found.training)} of training"
    failures = seen if found.mtbf.low < found.mtbf.high else ", as given"
    lines = [
        f"A step takes {within(found.step, seconds)}{step}.",
        f"A failure comes every {within(found.mtbf, seconds)}{failures}.",
        f"It takes {seconds(found.detection)} to be noticed and {seconds(found.relaunch)} more until training goes on.",
    ]
    if found.shares is not None:
        lines.append(f"So far the run had {per_cent(found.shares.goodput)} goodput: {_losses(found.shares)}.")
    return lines


def of_plans(found: Measured, plans: Sequence[Plan], asked: int | None) -> list[str]:
    """The first plan, what to expect of it, and the others beside it.

    Args:
        found: what they rest on.
        plans: the best first.
        asked: steps between checkpoints that were asked for.
    """
    plan, *others = plans
    every = f"every {plan.k:,} steps ({seconds(plan.k * plan.job.step_seconds)})"
    lines = {"drain": _drain, "snapshot": _snapshot, "blocking": _blocking, "journal": _journal}[plan.way](
        found, plan, every
    )
    if asked is not None and asked < plan.k:
        lines.append(f"`k`={asked} is {plan.k}: the next one cannot begin before this one is done.")
    lost = (
        f"lose {plan.steps_lost:.1f} steps with a failure" if plan.way != "journal" else "lose no step with a failure"
    )
    return [
        *lines,
        f"Expect to {lost}, and to be where the run was after at most {seconds(plan.seconds_lost)}.",
        f"Expect {within(plan.goodput, per_cent)} goodput: {_losses(plan.shares)}.",
        *(f"Instead, {_NAMES[p.way]} every {p.k:,} steps: {per_cent(p.shares.goodput)}." for p in others),
    ]


def _drain(found: Measured, plan: Plan, every: str) -> list[str]:
    how = "to the version of its first step" if plan.target == "none" else f"brought to its {plan.target} version"
    always = "continuously, " if plan.k == plan.job.drain_steps else ""
    late = f" It is durable {found.late} steps later." if found.late else ""
    return [
        f"Drain {always}{every}, {how}: it takes {plan.job.drain_steps} steps and slows them by "
        f"{per_cent(plan.job.tax)}.{late}"
    ]


def _snapshot(found: Measured, plan: Plan, every: str) -> list[str]:
    copy = copy_seconds(found)
    assert copy is not None and found.state_bytes is not None
    return [
        f"Take plain snapshots {every}: copying {size(found.state_bytes)} takes {seconds(copy)}, which "
        f"{'fits' if fits_slack(found) else 'does not fit'} {per_cent(SLACK)} of a step. They are durable "
        f"{plan.job.drain_steps} steps later."
    ]


def _blocking(found: Measured, plan: Plan, every: str) -> list[str]:
    return [f"Stop and save {every}: it takes {seconds(plan.job.save_seconds)}."]


def _journal(found: Measured, plan: Plan, every: str) -> list[str]:
    return [
        "The journal holds every step: a failure loses at most the one in flight, and a restart applies the others.",
        f"The journal slows steps by {per_cent(plan.job.tax)}; to apply one takes {seconds(found.replay or 0.0)}, a "
        f"snapshot of the factors {seconds(found.snapshot or 0.0)}.",
        f"A snapshot pays {every}; a run that is shorter needs none.",
    ]


def _losses(shares: Shares) -> str:
    named = {"rework": shares.rework, "restarts": shares.restart, "tax": shares.tax, "stalls": shares.stall}
    idle = {"idle": shares.idle} if shares.idle else {}
    return ", ".join(f"{per_cent(share)} {name}" for name, share in {**named, **idle}.items())
