"""Measured numbers with intervals: means of many, and a mean time between failures from a few."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zo_lightning.goodput.lives import Times

CONFIDENCE = 0.95
NORMAL = 1.96  # its two-sided quantile


@dataclass(frozen=True, slots=True)
class Interval:
    """A number, and where it lies with a confidence of 95 %.

    Attributes:
        value: the estimate.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float
    high: float


def exactly(value: float) -> Interval:
    """A number that is given."""
    return Interval(value, value, value)


def mean_of(times: Times) -> Interval:
    """The mean of two or more, with the interval of the normal law.

    Examples:
        >>> mean_of(Times(count=100, total=200.0, squares=499.0))
        Interval(value=2.0, low=1.804, high=2.196)
    """
    half = NORMAL * times.deviation / math.sqrt(times.count)
    return Interval(times.mean, times.mean - half, times.mean + half)


def mean_time_between(failures: int, seconds: float) -> Interval:
    """Mean time between failures that come at random, from how many came in some time.

    The exact interval of Garwood (1936): its ends are those of the Poisson laws under which as many failures, or as
    few, would be seen with 2.5 %. Without a failure there is a lower end alone, with 5 %: a third of the time.

    Args:
        failures: seen.
        seconds: of training.

    Examples:
        >>> [round(mean_time_between(failures, 3600.0).low) for failures in (0, 1, 2, 10)]
        [1202, 646, 498, 196]
        >>> [round(mean_time_between(failures, 3600.0).high) for failures in (1, 2, 10)]
        [142192, 14863, 751]
    """
    if failures == 0:
        return Interval(math.inf, seconds / _poisson_mean(0, 1 - CONFIDENCE), math.inf)
    tail = (1 - CONFIDENCE) / 2
    most, least = _poisson_mean(failures, tail), _poisson_mean(failures - 1, 1 - tail)
    return Interval(seconds / failures, seconds / most, seconds / least)


def _poisson_mean(count: int, probability: float) -> float:
    """The mean of the Poisson law under which ``count`` or fewer come with a probability."""
    low, high = 0.0, count + 10.0 * math.sqrt(count + 1.0) + 10.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, middle) > probability else (low, middle)
    return (low + high) / 2


def _at_most(count: int, mean: float) -> float:
    return math.fsum(math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(count + 1))
