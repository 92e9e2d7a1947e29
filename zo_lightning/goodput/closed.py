"""Closed forms for failures that come at random (exponential, one at a time): two laws and their best intervals."""

from __future__ import annotations

import math

from zo_lightning.goodput.model import Job, Shares, Target


def lost_steps(job: Job, k: float, target: Target, *, legacy_credit: bool = False) -> float:
    """Whole steps that a failure at a random moment takes, on average.

    Args:
        job: see ``Job``.
        k: steps from the beginning of one drain to that of the next.
        target: see ``Target``.
        legacy_credit: a drain counts as complete after ``k`` steps, though it takes ``drain_steps``.

    Examples:
        >>> [lost_steps(Job(), 30, target) for target in ("newest", "median", "oldest", "none")]
        [14.5, 29.5, 43.5, 44.5]
    """
    if not legacy_credit and target != "blocking":
        k = max(k, job.drain_steps)
    drain = min(k, job.drain_steps)
    stale = {"newest": 0.0, "median": drain // 2, "oldest": drain - 1, "none": drain, "blocking": 0.0}[target]
    return (k - 1) / 2 + stale


def closed_form(job: Job, k: float, target: Target, *, legacy_credit: bool = False) -> Shares:
    """Where the time goes if a failure finds every step of a checkpoint's cycle with the same probability.

    Asynchronous checkpoints: ``((M/s - 1/2) - L) t / (M + R)`` with ``s = t (1 + alpha min(1, D/k))`` and L of
    ``lost_steps``; the half step is the one that a failure interrupts. Blocking ones: Daly's (2006)
    ``k t / ((M + R) (exp((k t + C)/M) - 1))``, which is exact.

    Args:
        job: see ``Job``.
        k: see ``lost_steps``.
        target: see ``Target``.
        legacy_credit: see ``lost_steps``.

    Examples:
        >>> round(100 * closed_form(Job(), 30, "newest").goodput, 2)
        92.84
        >>> round(100 * closed_form(Job(devices=65_536), 30, "none").goodput, 2)
        74.97
    """
    mean, step, total = job.mtbf, job.step_seconds, job.mtbf + job.restart_seconds
    restart = job.restart_seconds / total
    if target == "blocking":
        cycle = k * step + job.save_seconds
        goodput = k * step / (total * math.expm1(cycle / mean))
        stall = mean * job.save_seconds / cycle / total
        return Shares(goodput=goodput, rework=1 - goodput - stall - restart, restart=restart, tax=0.0, stall=stall)
    if not legacy_credit:
        k = max(k, job.drain_steps)
    slowed = step * (1 + job.tax * min(1.0, job.drain_steps / k))
    done = mean / slowed
    rework = min(lost_steps(job, k, target, legacy_credit=legacy_credit) + 0.5, done) * step / total
    goodput = done * step / total - rework
    return Shares(goodput=goodput, rework=rework, restart=restart, tax=done * (slowed - step) / total)
