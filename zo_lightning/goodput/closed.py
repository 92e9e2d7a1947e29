"""Closed forms for failures that come at random (exponential, one at a time), and the interval that they call best.

Two forms answer the same question. ``closed_form`` lets a failure find every step of a checkpoint's cycle alike, as is
usual in tables of this kind. ``exact_form`` knows that a restart begins a cycle, and is what the simulator converges
to. Both count as ``Shares`` says; the clock of failures stands still during a restart.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.checks import COUNTABLE
from zo_lightning.goodput.model import Job, Shares, Target


def lost_steps(job: Job, k: float, target: Target, *, legacy_credit: bool = False) -> float:
    """Whole steps that a failure at a random moment takes, on average.

    Args:
        job: see ``Job``.
        k: steps from the beginning of one drain to that of the next.
        target: see ``Target``.
        legacy_credit: a drain counts as complete after ``k`` steps, though it takes ``drain_steps``.

    Raises:
        ConfigError: for a ``k`` below 1.

    Examples:
        >>> [lost_steps(Job(), 30, target) for target in ("newest", "median", "oldest", "none")]
        [14.5, 29.5, 43.5, 44.5]
    """
    k, drain = _cycle(job, k, target, legacy_credit)
    return (k - 1) / 2 + _staleness(target, drain)


def closed_form(job: Job, k: float, target: Target, *, legacy_credit: bool = False) -> Shares:
    """Where the time goes if a failure finds every step of a checkpoint's cycle with the same probability.

    Asynchronous checkpoints: ``((M/s - 1/2) - L) t / (M + R)`` with ``s = t (1 + alpha D/k)`` and L of ``lost_steps``;
    the half step is the one that a failure interrupts. Blocking ones: ``exact_form``.

    The approximation is to first order in (k + D) s / M, and low: a restored checkpoint has age 0, so that failures in
    quick succession lose less than L. With the defaults it misses 0.07 points of goodput at 16,384 devices and 0.55 at
    65,536 (``none``, best k); with ``newest`` 0.01 and 0.05.

    Args:
        job: see ``Job``.
        k: see ``lost_steps``.
        target: see ``Target``.
        legacy_credit: see ``lost_steps``.

    Raises:
        ConfigError: for a ``k`` below 1.

    Examples:
        >>> round(100 * closed_form(Job(), 30, "newest").goodput, 2)
        92.84
        >>> round(100 * closed_form(Job(devices=65_536), 30, "none").goodput, 2)
        74.97
    """
    if target == "blocking":
        return exact_form(job, k, target)
    lost = lost_steps(job, k, target, legacy_credit=legacy_credit) + 0.5
    k, drain = _cycle(job, k, target, legacy_credit)
    slowed = job.step_seconds * (1 + job.tax * drain / k)
    done = job.step_seconds / slowed
    rework = min(lost * job.step_seconds / job.mtbf, done)
    return _shares(job, goodput=done - rework, tax=1 - done)


def exact_form(job: Job, k: float, target: Target) -> Shares:
    """Where the time goes, without an approximation: a sum over the checkpoints that a life between failures completes.

    A life starts at a restored checkpoint, of age 0, and ends after an exponential time. Checkpoint j is complete after
    j T seconds and j k steps, with the state of ``staleness`` steps before, so that a life gains on average
    ``(k / (1 - exp(-T/M)) - staleness) exp(-T/M)`` steps. T is ``k t + alpha D t``: drains take the last D of k steps,
    one after the other.

    With blocking checkpoints T is ``k t + C``, and it is Daly's (2006) ``k t / ((M + R) (exp((k t + C)/M) - 1))``.

    Args:
        job: see ``Job``.
        k: see ``lost_steps``.
        target: see ``Target``.

    Raises:
        ConfigError: for a ``k`` below 1.

    Examples:
        >>> round(100 * exact_form(Job(devices=65_536), 30, "none").goodput, 2)
        75.52
        >>> round(100 * exact_form(Job(devices=65_536), 134, "blocking").goodput, 2)
        57.63
    """
    k, drain = _cycle(job, k, target, legacy_credit=False)
    blocking, step, mean = target == "blocking", job.step_seconds, job.mtbf
    saved = job.save_seconds if blocking else drain * step * (1 + job.tax)
    plain = k * step if blocking else (k - drain) * step
    cycle = plain + saved
    versions = k * step / cycle / _decay(cycle / mean) - _staleness(target, drain) * step / mean
    saving = saved / cycle * math.exp(-plain / mean) * _decay(saved / mean) / _decay(cycle / mean)
    goodput = max(versions, 0.0) * math.exp(-cycle / mean)  # below 0 by rounding alone
    if blocking:
        return _shares(job, goodput=goodput, stall=saving)
    return _shares(job, goodput=goodput, tax=saving * job.tax / (1 + job.tax))


def best_interval(job: Job, target: Target, *, legacy_credit: bool = False) -> int:
    """The whole number of steps for which ``closed_form`` gives the most goodput; the smallest of several.

    Args:
        job: see ``Job``.
        target: see ``Target``.
        legacy_credit: see ``lost_steps``.

    Raises:
        ConfigError: where hardly anything fails, as the longest interval is then best.

    Examples:
        >>> [best_interval(Job(devices=n), "none") for n in (512, 2048, 8192, 16_384, 65_536)]
        [300, 149, 74, 52, 30]
    """
    if job.mtbf / job.step_seconds > COUNTABLE:
        raise ConfigError(
            f"`goodput.mtbf_hours`={job.mtbf_hours:g}, beside `goodput.step_seconds`={job.step_seconds:g}, is so long "
            "that the longest interval is best: set `k`"
        )
    longest = job.drain_steps + math.ceil(job.mtbf / job.step_seconds)  # the best is below M in both forms

    def goodput(k: int) -> float:
        return closed_form(job, k, target, legacy_credit=legacy_credit).goodput

    if target == "blocking":
        return _highest(goodput, 1, longest)
    long = _highest(goodput, job.drain_steps, longest)
    return max(1, long, key=goodput) if legacy_credit else long  # credited after k < D steps: the fewer the better


def _cycle(job: Job, k: float, target: Target, legacy_credit: bool) -> tuple[float, float]:
    """Steps of a checkpoint's cycle, and of the drain in it: credited early, or begun when the last is done."""
    if not 1 <= k < math.inf:
        raise ConfigError(f"`k`={k}: a number of steps, 1 or more")
    if target == "blocking":
        return k, 0.0
    return (k, min(k, job.drain_steps)) if legacy_credit else (max(k, job.drain_steps), job.drain_steps)


def _staleness(target: Target, drain: float) -> float:
    """Steps that a checkpoint is old when it is complete."""
    return {"newest": 0.0, "median": drain // 2, "oldest": drain - 1, "none": drain, "blocking": 0.0}[target]


def _shares(job: Job, *, goodput: float, tax: float = 0.0, stall: float = 0.0) -> Shares:
    """From shares of the time between failures to those of the wall clock; what is left is done again."""
    running = 1 / (1 + job.restart_seconds / job.mtbf)
    rework = max(0.0, 1 - goodput - tax - stall)
    parts = {"goodput": goodput, "rework": rework, "tax": tax, "stall": stall}
    return Shares.of({"restart": 1 - running, **{name: running * share for name, share in parts.items()}})


def _decay(x: float) -> float:
    """``(1 - exp(-x)) / x``, also at 0."""
    return -math.expm1(-x) / x if x else 1.0


def _highest(function: Callable[[int], float], low: int, high: int) -> int:
    """Where a function of one maximum has it, by halving: a step up lies before it, a step down behind."""
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if function(middle) < function(middle + 1) else (low, middle)
    return low
