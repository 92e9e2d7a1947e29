"""How to checkpoint a run, in sentences with figures, out of what it has measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.closed import best_interval, closed_form, lost_steps
from zo_lightning.goodput.intervals import Interval
from zo_lightning.goodput.journal import journal_form, snapshot_interval
from zo_lightning.goodput.measured import FEWEST_STEPS, Measured
from zo_lightning.goodput.model import Job, Shares, Target
from zo_lightning.goodput.words import per_cent, seconds, within

SLACK = 0.03  # of a step, that copying a plain snapshot may take: `checkpoint.drain.tax`
Way = Literal["drain", "snapshot", "blocking", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A way to checkpoint, and what to expect of it.

    Attributes:
        way: see ``Way``.
        k: steps from the beginning of one checkpoint to that of the next; None for a journal that needs no snapshot.
        target: of a drain; ``none`` for plain snapshots; None for a journal.
        steps_lost: with each failure, on average.
        seconds_lost: from a failure until the run is where it was, at worst.
        shares: see ``Shares``.
        goodput: of ``shares``, with its interval.
    """

    way: Way
    k: int | None
    target: Target | None
    steps_lost: float
    seconds_lost: float
    shares: Shares
    goodput: Interval


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

    Args:
        found: what is known of it.
        k: steps between checkpoints, instead of the best number.
        target: of a drain, or ``blocking``, instead of the best.
        rto_seconds: from a failure until the run is where it was, at most.

    Raises:
        ConfigError: if too little is known, naming the flags that say the rest, or for a plan that cannot be.

    Examples:
        >>> post = Measured().given(step_seconds=7.0, mtbf_hours=50_000, devices=16_384, drain_steps=30,
        ...     tax=0.03, save_seconds=210.0, detection_seconds=30.0, relaunch_seconds=360.0)
        >>> plan = advise(post).plan
        >>> plan.way, plan.k, plan.target, round(100 * plan.shares.goodput, 2)
        ('drain', 52, 'newest', 93.33)
    """
    _check_complete(found)
    if k is not None and k < 1:
        raise ConfigError(f"`k`={k}: a number of steps, 1 or more")
    plans = (_journalled if found.way == "journal" else _first_order)(found, k, target, rto_seconds)
    sentences = (*_found(found), *_said(found, plans), *_compared(plans[0], plans[1:]))
    return Advice(plan=plans[0], others=tuple(plans[1:]), sentences=sentences, measured=found)


def _check_complete(found: Measured) -> None:
    """Raise ``ConfigError`` with all that has to be given."""
    unseen = (
        f"no failure was seen in {seconds(found.training)} of training, so that one comes less often than every "
        f"{seconds(found.mtbf.low)}, with 95 %"
        if found.mtbf is not None
        else "nobody said how often it fails"
    )
    without_step = f"{found.steps} steps were timed, {FEWEST_STEPS} are needed"
    wanted = {
        "step_seconds": (found.step, without_step),
        "mtbf_hours": (found.mtbf if found.mtbf is not None and found.mtbf.high < float("inf") else None, unseen),
        "detection_seconds": (found.detection, "no restart was seen"),
        "relaunch_seconds": (found.relaunch, "no restart was seen"),
        "tax": (found.tax, "no checkpoint was completed"),
    }
    if found.way == "journal":
        wanted["replay_seconds"] = (found.replay, f"fewer than {FEWEST_STEPS} steps were taken from the journal")
        wanted["snapshot_seconds"] = (found.snapshot, "no snapshot was completed")
    else:
        wanted["drain_steps"] = (found.drain_steps, "no checkpoint was completed")
        wanted["save_seconds"] = (found.save, "no checkpoint was completed")
    reasons: dict[str, list[str]] = {}
    for key, (value, reason) in wanted.items():
        if value is None:
            reasons.setdefault(reason, []).append(f"`{key}`")
    if reasons:
        lines = "; ".join(f"{reason}: give {', '.join(keys)}" for reason, keys in reasons.items())
        raise ConfigError(f"{found.source} does not tell enough: {lines}")


def _job(found: Measured) -> Job:
    assert found.step and found.mtbf and found.detection is not None and found.relaunch is not None
    return Job(
        devices=1,
        step_seconds=found.step.value,
        drain_steps=found.drain_steps or 1,
        tax=found.tax or 0.0,
        save_seconds=found.save or 0.0,
        detection_seconds=found.detection,
        relaunch_seconds=found.relaunch,
        mtbf_hours=found.mtbf.value / 3600,
    )


def _snapshots(found: Measured, job: Job) -> Job | None:
    """The job with plain snapshots; None where their cost is not known."""
    if found.state_bytes is None or found.bandwidth is None:
        return None
    copy = found.state_bytes / found.bandwidth
    steps = max(1, round((job.save_seconds - copy) / job.step_seconds + 0.5))
    return replace(job, drain_steps=steps, tax=copy / (steps * job.step_seconds))


def _first_order(found: Measured, k: int | None, target: Target | None, rto: float | None) -> list[Plan]:
    job = _job(found)
    snapshots = _snapshots(found, job)
    plans = [] if found.way == "snapshot" else [_plan("drain", job, found, k, target or "newest", rto)]
    if snapshots is not None:
        plans.append(_plan("snapshot", snapshots, found, k, "none", rto))
    plans.append(_plan("blocking", job, found, k, "blocking", rto))
    return sorted(plans, key=lambda plan: _rank(plan, found, target))


def _rank(plan: Plan, found: Measured, target: Target | None) -> tuple[bool, bool, float]:
    """What was asked about first, then a plain snapshot that fits the slack, then by goodput."""
    asked = {"blocking": "blocking", None: None}.get(target, "drain")
    assert found.step is not None
    fits = plan.way == "snapshot" and fits_slack(found)
    return plan.way != asked, not fits, -plan.shares.goodput


def fits_slack(found: Measured) -> bool:
    """Whether copying the whole state takes no more of a step than a drain may."""
    known = found.state_bytes is not None and found.bandwidth is not None and found.step is not None
    return known and found.state_bytes / found.bandwidth <= SLACK * found.step.value  # type: ignore[operator,union-attr]


def _plan(way: Way, job: Job, found: Measured, k: int | None, target: Target, rto: float | None) -> Plan:
    if k is not None and target == "none" and k < job.drain_steps:
        raise ConfigError(
            f"`k`={k}: a checkpoint takes {job.drain_steps} steps and the next cannot begin before; give `k` of "
            f"{job.drain_steps} or more, or a `target` that drains are brought to"
        )
    least = 1 if target == "blocking" else job.drain_steps
    steps = max(k, least) if k is not None else best_interval(job, target)
    late = found.late if way == "drain" else 0

    def worst(k: int) -> float:
        lost = (k - 1) / 2 + lost_steps(job, k, target) + late
        return job.restart_seconds + lost * job.step_seconds

    def form(job: Job) -> Shares:
        return _later(closed_form(job, steps, target), late * job.step_seconds / (job.mtbf + job.restart_seconds))

    if rto is not None and worst(steps) > rto:
        steps -= math.ceil((worst(steps) - rto) / job.step_seconds)
        if steps < least:
            raise ConfigError(
                f"`rto_seconds`={rto:g}: a restart takes {job.restart_seconds:.4g} s, and with a checkpoint every {least} "
                f"steps, the shortest interval, it is {worst(least):.4g} s until the run is where it was: allow as much"
            )
    return Plan(
        way=way,
        k=steps,
        target=target,
        steps_lost=lost_steps(job, steps, target) + late,
        seconds_lost=worst(steps),
        shares=form(job),
        goodput=_interval(found, job, form),
    )


def _later(shares: Shares, rework: float) -> Shares:
    """With checkpoints that are durable some steps after the drain's end."""
    rework = min(rework, shares.goodput)
    return replace(shares, goodput=shares.goodput - rework, rework=shares.rework + rework)


def _interval(found: Measured, job: Job, form: Callable[[Job], Shares]) -> Interval:
    """Goodput where the time of a step and between failures are at their worse and their better ends."""
    assert found.step is not None and found.mtbf is not None
    worse = replace(job, step_seconds=found.step.high, mtbf_hours=found.mtbf.low / 3600)
    better = replace(job, step_seconds=found.step.low, mtbf_hours=found.mtbf.high / 3600)
    return Interval(form(job).goodput, form(worse).goodput, form(better).goodput)


def _journalled(found: Measured, k: int | None, target: Target | None, rto: float | None) -> list[Plan]:
    if target is not None:
        raise ConfigError(f"`target`={target}: a run with a journal has no drain; leave it out")
    job, replay, snapshot = _job(found), found.replay or 0.0, found.snapshot or 0.0
    best = (
        k if k is not None else max(1, round(snapshot_interval(job, replay_seconds=replay, snapshot_seconds=snapshot)))
    )
    if rto is not None:
        budget = rto - job.restart_seconds
        if budget < replay:
            raise ConfigError(f"`rto_seconds`={rto:g}: a restart alone takes {job.restart_seconds:.4g} s: allow more")
        best = min(best, int(budget / replay)) if replay else best

    def form(job: Job) -> Shares:
        return journal_form(job, best, replay_seconds=replay, snapshot_seconds=snapshot)

    return [
        Plan(
            way="journal",
            k=best,
            target=None,
            steps_lost=0.0,
            seconds_lost=job.restart_seconds + best * replay,
            shares=form(job),
            goodput=_interval(found, job, form),
        )
    ]


def _found(found: Measured) -> list[str]:
    """What the advice rests on."""
    assert found.step is not None and found.mtbf is not None
    assert found.detection is not None and found.relaunch is not None
    lines = [
        f"A step takes {within(found.step, seconds)}"
        + (f", from {found.steps:,} steps." if found.steps else ", as given."),
        f"A failure comes every {within(found.mtbf, seconds)}"
        + (f", from {found.failures} in {seconds(found.training)} of training." if found.training else ", as given."),
        f"It takes {seconds(found.detection)} to be noticed and {seconds(found.relaunch)} more until training goes on.",
    ]
    if found.shares is not None:
        lines.append(
            f"So far the run had {per_cent(found.shares.goodput)} goodput: {_losses(found.shares)}, "
            f"{per_cent(found.shares.idle)} idle."
        )
    return lines


def _said(found: Measured, plans: list[Plan]) -> list[str]:
    plan = plans[0]
    assert plan.k is not None and found.step is not None
    every = f"every {plan.k:,} steps ({seconds(plan.k * found.step.value)})"
    if plan.way == "journal":
        lines = [
            "The journal holds every step: a failure costs none of them, at most the one in flight.",
            f"It slows steps by {per_cent(found.tax or 0.0)}; a step out of it takes {seconds(found.replay or 0.0)}, a "
            f"snapshot {seconds(found.snapshot or 0.0)}.",
            f"A snapshot pays {every}; a shorter run needs none.",
        ]
    elif plan.way == "drain":
        lines = [
            f"Drain {'continuously, ' if plan.k == found.drain_steps else ''}{every}, {_brought(plan.target)}: it takes "
            f"{found.drain_steps} steps and slows them by {per_cent(found.tax or 0.0)}."
        ]
    elif plan.way == "snapshot":
        assert found.state_bytes is not None and found.bandwidth is not None
        copy = found.state_bytes / found.bandwidth
        fits = "fits" if fits_slack(found) else "does not fit"
        lines = [
            f"Take plain snapshots {every}: copying {found.state_bytes / 1e6:.3g} MB takes {seconds(copy)}, which "
            f"{fits} {per_cent(SLACK)} of a step."
        ]
    else:
        lines = [f"Stop and save {every}: a save takes {seconds(found.save or 0.0)}."]
    return [
        *lines,
        f"Expect to lose {plan.steps_lost:.1f} steps with a failure, and to be where the run was after at most "
        f"{seconds(plan.seconds_lost)}.",
        f"Expect {within(plan.goodput, per_cent)} goodput: {_losses(plan.shares)}.",
    ]


def _losses(shares: Shares) -> str:
    named = {"rework": shares.rework, "restarts": shares.restart, "tax": shares.tax, "stalls": shares.stall}
    return ", ".join(f"{per_cent(share)} {name}" for name, share in named.items())


def _brought(target: Target | None) -> str:
    return "to the version of its first step" if target == "none" else f"brought to its {target} version"


def _compared(plan: Plan, others: list[Plan]) -> list[str]:
    names = {"drain": "a drain", "snapshot": "plain snapshots", "blocking": "saves that training waits for"}
    return [
        f"Instead, {names[other.way]} every {other.k:,} steps: {per_cent(other.shares.goodput)}."
        for other in others
        if other.k is not None
    ]
