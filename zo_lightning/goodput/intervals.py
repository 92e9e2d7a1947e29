"""Measured numbers with intervals: means of many, and a mean time between failures from a few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zo_lightning.goodput.times import Times

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

    def __add__(self, other: Interval) -> Interval:
        """Of a sum, with ends that hold whatever the two have in common."""
        return Interval(self.value + other.value, self.low + other.low, self.high + other.high)


def exactly(value: float) -> Interval:
    """A number that is given."""
    return Interval(value, value, value)


def mean_of(times: Times) -> Interval:
    """The mean of some, with the interval of Student's law; of a single one there is no interval.

    Examples:
        >>> interval = mean_of(Times(count=100, total=200.0, squares=499.0))
        >>> interval.value, round(interval.low, 3), round(interval.high, 3)
        (2.0, 1.802, 2.198)
    """
    if times.count == 1:
        return exactly(times.mean)
    half = _student(times.count - 1) * times.deviation / math.sqrt(times.count)
    return Interval(times.mean, max(times.mean - half, 0.0), times.mean + half)


def ratio_of(parts: Sequence[float], wholes: Sequence[float]) -> Interval:
    """The sum of some parts over that of their wholes, with the interval of the ratio estimator (Cochran, 1977).

    Args:
        parts: one for each whole; of a single one there is no interval.
        wholes: not all 0.

    Examples:
        >>> found = ratio_of([1.0, 1.1, 4.0], [10.0, 10.0, 40.0])
        >>> [round(end, 3) for end in (found.value, found.low, found.high)]
        [0.102, 0.092, 0.111]
    """
    ratio = math.fsum(parts) / math.fsum(wholes)
    if len(parts) == 1:
        return exactly(ratio)
    squares = math.fsum((part - ratio * whole) ** 2 for part, whole in zip(parts, wholes, strict=True))
    deviation = math.sqrt(squares * len(parts) / (len(parts) - 1)) / math.fsum(wholes)
    half = _student(len(parts) - 1) * deviation
    return Interval(ratio, max(ratio - half, 0.0), ratio + half)


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


def _student(degrees: int) -> float:
    """The two-sided quantile of Student's law: a table for one and two degrees, then a series to one in a hundred."""
    if degrees <= 2:
        return (12.706, 4.303)[degrees - 1]
    z = NORMAL
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2 + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / degrees**3


def _poisson_mean(count: int, probability: float) -> float:
    """The mean of the Poisson law under which ``count`` or fewer come with a probability."""
    low, high = 0.0, count + 10.0 * math.sqrt(count + 1.0) + 10.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, middle) > probability else (low, middle)
    return (low + high) / 2


def _at_most(count: int, mean: float) -> float:
    return math.fsum(math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(count + 1))
