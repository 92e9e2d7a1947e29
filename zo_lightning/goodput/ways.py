"""Ways to checkpoint a run whose optimizer's state has to be saved, and what each of them comes to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from zo_lightning.goodput.closed import exact_form, lost_steps
from zo_lightning.goodput.intervals import Interval, exactly
from zo_lightning.goodput.known import FirstOrder, Known
from zo_lightning.goodput.model import Job, Shares, Target

SLACK = 0.03  # of a step, that copying a plain snapshot may take: the default of `checkpoint.drain.tax`
Way = Literal["drain", "snapshot", "blocking", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A way that a run could take.

    Attributes:
        way: see ``Way``.
        job: with this way's costs.
        target: of a drain; ``none`` for plain snapshots.
        tax: of ``job``, with its interval.
        late: steps from the end of a drain until it is durable.
    """

    way: Way
    job: Job
    target: Target
    tax: Interval
    late: int = 0

    @property
    def shortest(self) -> int:
        """Steps from one checkpoint to the next, at least."""
        return 1 if self.target == "blocking" else self.job.drain_steps

    def shares(self, job: Job, k: int) -> Shares:
        """Where the time goes, with checkpoints that are durable ``late`` steps after the drain's end.

        A life that ends before has the checkpoint before; ``exp(-late t / M)`` of them live on until then.
        """
        shares = exact_form(job, k, self.target)
        rework = -math.expm1(-self.late * job.step_seconds / job.mtbf) * shares.goodput
        return replace(shares, goodput=shares.goodput - rework, rework=shares.rework + rework)

    def worst(self, k: int) -> float:
        """Seconds from a failure until the run is where it was, at most.

        It comes right before a checkpoint is durable, and drains slow the steps that are made again.
        """
        behind = lost_steps(self.job, k, self.target) - (k - 1) / 2 + self.late
        slowed = 0.0 if self.target == "blocking" else self.job.tax * (self.job.drain_steps + behind)
        return self.job.restart_seconds + (k + behind + slowed) * self.job.step_seconds


def candidates_of(known: FirstOrder, target: Target | None) -> list[Candidate]:
    """All ways for which the figures suffice.

    Args:
        known: the figures.
        target: of drains, or ``blocking``; None for the best.
    """
    found = []
    job = replace(known.job, save_seconds=known.save)
    if (drain := known.drain) is not None:
        to: Target = "newest" if target in (None, "blocking") else target
        drained = replace(job, drain_steps=drain.steps, tax=drain.tax.value)
        found.append(Candidate(way="drain", job=drained, target=to, tax=drain.tax, late=drain.late))
    found.append(Candidate(way="blocking", job=job, target="blocking", tax=exactly(0.0)))
    if (copy := known.copy) is not None:
        steps = max(1, math.ceil((known.save - copy.seconds) / job.step_seconds))
        tax = copy.seconds / (steps * job.step_seconds)
        snapshots = replace(job, drain_steps=steps, tax=tax)
        found.append(Candidate(way="snapshot", job=snapshots, target="none", tax=exactly(tax)))
    return found


def fits_slack(known: FirstOrder) -> bool:
    """Whether copying the whole state takes no more of a step than a drain may."""
    return known.copy is not None and known.copy.seconds <= SLACK * known.step.value


def goodput_of(known: Known, job: Job, tax: Interval, form: Callable[[Job], Shares]) -> Interval:
    """Goodput, and what it is where all that was measured is at its worse or its better end."""

    def at(step: float, mtbf: float, restart: float, tax: float) -> float:
        end = replace(job, step_seconds=step, mtbf_hours=mtbf / 3600, tax=tax, detection_seconds=0.0)
        return form(replace(end, relaunch_seconds=restart)).goodput

    step, mtbf, restart = known.step, known.mtbf, known.restart
    worse = at(step.high, mtbf.low, restart.high, tax.high)
    return Interval(form(job).goodput, worse, at(step.low, mtbf.high, restart.low, tax.low))
