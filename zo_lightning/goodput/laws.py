"""Formulas for the interval between checkpoints, which approximate ``closed.best_interval``."""

from __future__ import annotations

import math

from zo_lightning.goodput.model import Job, Target


def young(job: Job) -> float:
    """Steps between blocking saves by Young (1974): ``sqrt(2 C M) / t``, the first order of ``daly``.

    First order in C / M: too long by about 2 C / 3 against the exact optimum, which costs 0.03 points of goodput at
    16,384 devices and 0.2 at 65,536.

    Examples:
        >>> [round(young(Job(devices=n))) for n in (512, 2048, 8192, 16_384, 65_536)]
        [1736, 868, 434, 307, 153]
    """
    return math.sqrt(2 * job.save_seconds * job.mtbf) / job.step_seconds


def daly(job: Job) -> float:
    """Steps between blocking saves by Daly (2006): ``(sqrt(2 C M) (1 + x/3 + x^2/9) - C) / t``, ``x = sqrt(C / 2M)``.

    An approximation of the maximum of ``exact_form`` that misses it by less than a step where C is below M / 10. From
    C = 2 M on it is M, as in the paper. The restart takes no part: it costs the same at every interval.

    Examples:
        >>> [round(daly(Job(devices=n))) for n in (512, 2048, 8192, 16_384, 65_536)]
        [1716, 848, 414, 287, 134]
    """
    if job.save_seconds >= 2 * job.mtbf:
        return job.mtbf / job.step_seconds
    x = math.sqrt(job.save_seconds / (2 * job.mtbf))
    return young(job) * (1 + x / 3 + x * x / 9) - job.save_seconds / job.step_seconds


def drain_law(job: Job) -> float:
    """Steps between drains: ``max(D, sqrt(2 alpha D t M) / t)``.

    Young's formula with what a drain really costs, ``alpha D t`` seconds, and never less than a drain takes. Whatever
    the target, the maximum of ``closed_form`` lies alpha D steps below that root: one step with the defaults.

    Examples:
        >>> [round(drain_law(Job(devices=n))) for n in (512, 2048, 8192, 16_384, 65_536)]
        [301, 150, 75, 53, 30]
    """
    cost = job.tax * job.drain_steps * job.step_seconds
    return max(float(job.drain_steps), math.sqrt(2 * cost * job.mtbf) / job.step_seconds)


def law(job: Job, target: Target) -> float:
    """What the formula for a target says: Young's for blocking saves, that of drains for the others.

    Examples:
        >>> round(law(Job(), "blocking")), round(law(Job(), "newest"))
        (307, 53)
    """
    return young(job) if target == "blocking" else drain_law(job)
