"""Closed forms for a run whose steps are in a journal: a failure loses none, and a restart applies them again."""

from __future__ import annotations

import math

from zo_lightning.goodput.model import Job, Shares


def journal_form(job: Job, k: float, *, replay_seconds: float, snapshot_seconds: float) -> Shares:
    """Where the time goes: a restart replays (k - 1) / 2 steps on average, and nothing is made again.

    The half step that a failure cuts short counts as restart, as in a run's account, where it lies behind the last sign
    of life.

    Args:
        job: see ``Job``; its ``tax`` is on every step.
        k: steps between snapshots, or of the whole run where there are none.
        replay_seconds: of a step that is applied again.
        snapshot_seconds: that training pays for a snapshot.

    Examples:
        >>> job = Job(devices=1, mtbf_hours=1.0, step_seconds=1.0, tax=0.0, relaunch_seconds=10.0)
        >>> shares = journal_form(job, 100, replay_seconds=0.01, snapshot_seconds=1.0)
        >>> round(100 * shares.goodput, 2), round(100 * shares.restart, 2), shares.rework
        (97.89, 1.13, 0.0)
    """
    slowed = job.step_seconds * (1 + job.tax) + snapshot_seconds / k
    total = job.mtbf + job.restart_seconds + replay_seconds * (k - 1) / 2
    running, steps = job.mtbf / total, job.mtbf / slowed / total
    cut = min(0.5, job.mtbf / slowed) * job.step_seconds / total
    return Shares(
        goodput=steps * job.step_seconds - cut,
        rework=0.0,
        restart=1 - running + cut,
        tax=steps * job.step_seconds * job.tax,
        stall=steps * snapshot_seconds / k,
    )


def snapshot_interval(job: Job, *, replay_seconds: float, snapshot_seconds: float) -> float:
    """Steps between snapshots of a journalled run: ``sqrt(2 C_s M / rho) / t``, where ``rho`` is replay over step time.

    Args:
        job: see ``Job``.
        replay_seconds: of a step that is applied again, above 0.
        snapshot_seconds: that training pays for a snapshot, C_s.

    Examples:
        >>> day = Job(devices=1, mtbf_hours=24.0, step_seconds=0.093)
        >>> round(snapshot_interval(day, replay_seconds=0.00014, snapshot_seconds=0.1), -3)
        36000.0
    """
    rho = replay_seconds / job.step_seconds
    return math.sqrt(2 * snapshot_seconds * job.mtbf / rho) / job.step_seconds
