"""Ways to checkpoint a run, and what to expect of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.closed import best_interval, closed_form, lost_steps
from zo_lightning.goodput.intervals import Interval
from zo_lightning.goodput.journal import journal_form, snapshot_interval
from zo_lightning.goodput.measured import Measured
from zo_lightning.goodput.model import Job, Shares, Target

SLACK = 0.03  # of a step, that copying a plain snapshot may take: the default of `checkpoint.drain.tax`
Way = Literal["drain", "snapshot", "blocking", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A way to checkpoint.

    Attributes:
        way: see ``Way``.
        job: with this way's costs.
        k: steps from the beginning of one checkpoint to that of the next.
        target: of a drain; ``none`` for plain snapshots; None for a journal.
        steps_lost: with each failure, on average.
        seconds_lost: from a failure until the run is where it was, at worst.
        shares: see ``Shares``.
        goodput: of ``shares``, with its interval.
    """

    way: Way
    job: Job
    k: int
    target: Target | None
    steps_lost: float
    seconds_lost: float
    shares: Shares
    goodput: Interval


@dataclass(frozen=True, slots=True)
class _Candidate:
    way: Way
    job: Job
    target: Target
    late: int = 0  # steps from the end of a drain until it is durable

    @property
    def shortest(self) -> int:
        """Steps from one checkpoint to the next, at least."""
        return 1 if self.target == "blocking" else self.job.drain_steps

    def lost(self, k: int) -> float:
        """Steps, on average."""
        return lost_steps(self.job, k, self.target) + self.late

    def worst(self, k: int) -> float:
        """Seconds from a failure until the run is where it was."""
        return self.job.restart_seconds + (self.lost(k) + (k - 1) / 2) * self.job.step_seconds

    def shares(self, job: Job, k: int) -> Shares:
        """With checkpoints that are durable some steps after the drain's end."""
        shares = closed_form(job, k, self.target)
        rework = min(self.late * job.step_seconds / (job.mtbf + job.restart_seconds), shares.goodput)
        return replace(shares, goodput=shares.goodput - rework, rework=shares.rework + rework)


def job_of(found: Measured) -> Job:
    """The job that a run is; all that it needs is known."""
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


def copy_seconds(found: Measured) -> float | None:
    """Of the whole state to the host."""
    known = found.state_bytes is not None and found.bandwidth is not None
    return found.state_bytes / found.bandwidth if known else None  # type: ignore[operator]


def fits_slack(found: Measured) -> bool:
    """Whether copying the whole state takes no more of a step than a drain may."""
    copy = copy_seconds(found)
    return copy is not None and found.step is not None and copy <= SLACK * found.step.value


def first_order(found: Measured, k: int | None, target: Target | None, rto: float | None) -> list[Plan]:
    """Plans of a run whose optimizer's state has to be saved, what was asked about first, then the best.

    Raises:
        ConfigError: if what was asked about cannot be.
    """
    candidates = _candidates(found, target)
    wanted = [candidate for candidate in candidates if target in (None, candidate.target)]
    if not wanted:
        raise ConfigError(
            f"`target`={target}: the run took plain snapshots, and what a drain costs is not known; measure it with "
            "`checkpoint.drain.mode=drain`, or give `drain_steps` and `tax`"
        )
    problems = {candidate: _problem(candidate, k, rto) for candidate in candidates}
    if all(problems[candidate] for candidate in wanted):
        raise ConfigError(problems[wanted[0]])
    plans = [_plan(candidate, found, k, rto) for candidate in candidates if not problems[candidate]]

    def rank(plan: Plan) -> tuple[bool, bool, float]:
        fits = plan.way == "snapshot" and fits_slack(found)
        return target not in (None, plan.target), not fits, -plan.shares.goodput

    return sorted(plans, key=rank)


def _candidates(found: Measured, target: Target | None) -> Sequence[_Candidate]:
    job, copy = job_of(found), copy_seconds(found)
    candidates = [_Candidate("blocking", job, "blocking")]
    if found.way != "snapshot":
        to = target if target is not None and target != "blocking" else "newest"
        candidates.insert(0, _Candidate("drain", job, to, found.late))
    if copy is not None:
        steps = max(1, math.ceil((job.save_seconds - copy) / job.step_seconds))
        snapshots = replace(job, drain_steps=steps, tax=copy / (steps * job.step_seconds))
        candidates.append(_Candidate("snapshot", snapshots, "none"))
    return candidates


def _problem(candidate: _Candidate, k: int | None, rto: float | None) -> str:
    """Why it cannot be; empty if it can."""
    job, shortest = candidate.job, candidate.shortest
    if k is not None and candidate.target == "none" and k < shortest:
        return (
            f"`k`={k}: a checkpoint takes {shortest} steps and the next cannot begin before; give `k` of {shortest} or "
            "more, or a `target` that drains are brought to"
        )
    least = shortest if k is None else max(k, shortest)
    if rto is not None and candidate.worst(least) > rto:
        return (
            f"`rto_seconds`={rto:g}: a restart takes {job.restart_seconds:.4g} s, and with a checkpoint every {least} "
            f"steps it is {candidate.worst(least):.4g} s until the run is where it was; allow as much"
        ) + (", or give a smaller `k`" if least > shortest else "")
    return ""


def _plan(candidate: _Candidate, found: Measured, k: int | None, rto: float | None) -> Plan:
    job = candidate.job
    best = max(k, candidate.shortest) if k is not None else best_interval(job, candidate.target)
    if rto is not None and candidate.worst(best) > rto:
        best -= math.ceil((candidate.worst(best) - rto) / job.step_seconds)
    return Plan(
        way=candidate.way,
        job=job,
        k=best,
        target=candidate.target,
        steps_lost=candidate.lost(best),
        seconds_lost=candidate.worst(best),
        shares=candidate.shares(job, best),
        goodput=_interval(found, job, lambda job: candidate.shares(job, best)),
    )


def journalled(found: Measured, k: int | None, target: Target | None, rto: float | None) -> list[Plan]:
    """The one plan of a run whose steps are in a journal; ``k`` is of its snapshots.

    Raises:
        ConfigError: for a target, or a restart that takes too long by itself.
    """
    if target is not None:
        raise ConfigError(f"`target`={target}: a run with a journal has no drain; leave it out")
    job, cost = job_of(found), {"replay_seconds": found.replay or 0.0, "snapshot_seconds": found.snapshot or 0.0}
    best = snapshot_interval(job, **cost) if k is None else k
    if rto is not None:
        longest = (rto - job.restart_seconds) / max(cost["replay_seconds"], 1e-9)
        if longest < (k or 1):
            raise ConfigError(
                f"`rto_seconds`={rto:g}: a restart takes {job.restart_seconds:.4g} s, and replay "
                f"{cost['replay_seconds']:.3g} s a step; allow more"
            )
        best = min(best, longest)
    best = max(1, int(min(best, 1e12)))
    return [
        Plan(
            way="journal",
            job=job,
            k=best,
            target=None,
            steps_lost=0.0,
            seconds_lost=job.restart_seconds + best * cost["replay_seconds"],
            shares=journal_form(job, best, **cost),
            goodput=_interval(found, job, lambda job: journal_form(job, best, **cost)),
        )
    ]


def _interval(found: Measured, job: Job, form: Callable[[Job], Shares]) -> Interval:
    """Goodput where the time of a step and between failures are at their worse and their better ends."""
    assert found.step is not None and found.mtbf is not None
    worse = replace(job, step_seconds=found.step.high, mtbf_hours=found.mtbf.low / 3600)
    better = replace(job, step_seconds=found.step.low, mtbf_hours=found.mtbf.high / 3600)
    return Interval(form(job).goodput, form(worse).goodput, form(better).goodput)
