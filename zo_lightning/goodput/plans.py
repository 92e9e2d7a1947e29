"""Plans for a run, and what to expect of each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.closed import best_interval
from zo_lightning.goodput.intervals import Interval
from zo_lightning.goodput.journal import journal_form, snapshot_interval
from zo_lightning.goodput.known import FirstOrder, Journalled
from zo_lightning.goodput.model import Job, Shares, Target
from zo_lightning.goodput.ways import Candidate, Way, candidates_of, fits_slack, goodput_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A way to checkpoint.

    Attributes:
        way: see ``Way``.
        job: with this way's costs.
        k: steps from the beginning of one checkpoint to that of the next.
        target: of a drain; ``none`` for plain snapshots; None for a journal.
        tax: of ``job``, with its interval.
        steps_lost: with each failure, on average, and with the one that it cuts short.
        seconds_lost: from a failure until the run is where it was, at worst.
        shares: see ``Shares``.
        goodput: of ``shares``, with its interval.
    """

    way: Way
    job: Job
    k: int
    target: Target | None
    tax: Interval
    steps_lost: float
    seconds_lost: float
    shares: Shares
    goodput: Interval


def first_order(known: FirstOrder, k: int | None, target: Target | None, rto: float | None) -> list[Plan]:
    """Plans of a run whose optimizer's state has to be saved, what was asked about first, then the best.

    Raises:
        ConfigError: if what was asked about cannot be.
    """

    def is_wanted(candidate: Candidate | Plan) -> bool:
        """A target is a drain's, unless the run takes plain snapshots."""
        asked = candidate.way != "snapshot" or known.drain is None
        return target is None or (candidate.target == target and asked)

    def rank(plan: Plan) -> tuple[bool, bool, float]:
        fits = plan.way == "snapshot" and fits_slack(known)
        return not is_wanted(plan), not fits, -plan.shares.goodput

    candidates = candidates_of(known, target)
    wanted = [candidate for candidate in candidates if is_wanted(candidate)]
    if not wanted:
        raise ConfigError(
            f"`target`={target}: the run took plain snapshots, and what a drain costs is not known; measure it with "
            "`checkpoint.drain.mode=drain`, or give `drain_steps` and `tax`"
        )
    problems = {candidate: _problem(candidate, k, rto) for candidate in candidates}
    if all(problems[candidate] for candidate in wanted):
        raise ConfigError(problems[wanted[0]])
    return sorted((_plan(candidate, known, k, rto) for candidate in candidates if not problems[candidate]), key=rank)


def _problem(candidate: Candidate, k: int | None, rto: float | None) -> str:
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


def _plan(candidate: Candidate, known: FirstOrder, k: int | None, rto: float | None) -> Plan:
    job = candidate.job
    best = best_interval(job, candidate.target) if k is None else max(k, candidate.shortest)
    if rto is not None and candidate.worst(best) > rto:
        best -= math.ceil((candidate.worst(best) - rto) / job.step_seconds)
    shares = candidate.shares(job, best)
    return Plan(
        way=candidate.way,
        job=job,
        k=best,
        target=candidate.target,
        tax=candidate.tax,
        steps_lost=shares.rework * (job.mtbf + job.restart_seconds) / job.step_seconds,
        seconds_lost=candidate.worst(best),
        shares=shares,
        goodput=goodput_of(known, job, candidate.tax, lambda job: candidate.shares(job, best)),
    )


def journalled(known: Journalled, k: int | None, target: Target | None, rto: float | None) -> list[Plan]:
    """The one plan of a run whose steps are in a journal; ``k`` is of its snapshots.

    Raises:
        ConfigError: for a target, or a restart that takes too long by itself.
    """
    if target is not None:
        raise ConfigError(f"`target`={target}: a run with a journal has no drain; leave it out")
    job = replace(known.job, tax=known.tax.value)
    restart = job.restart_seconds + job.step_seconds * (1 + job.tax)  # with the step that was cut short
    best = snapshot_interval(job, replay_seconds=known.replay, snapshot_seconds=known.snapshot) if k is None else k
    if rto is not None:
        longest = (rto - restart) / known.replay
        if longest < (k or 1):
            raise ConfigError(
                f"`rto_seconds`={rto:g}: a restart and a step take {restart:.4g} s, and replay {known.replay:.3g} s a "
                "step; allow more"
            )
        best = min(best, longest)
    best = max(1, int(best))

    def form(job: Job) -> Shares:
        return journal_form(job, best, replay_seconds=known.replay, snapshot_seconds=known.snapshot)

    return [
        Plan(
            way="journal",
            job=job,
            k=best,
            target=None,
            tax=known.tax,
            steps_lost=0.0,
            seconds_lost=restart + best * known.replay,
            shares=form(job),
            goodput=goodput_of(known, job, known.tax, form),
        )
    ]
