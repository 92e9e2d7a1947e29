"""Many measured times, as three numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Times:
    """Count, sum and sum of squares of some seconds.

    Examples:
        >>> times = Times.of([1.0, 2.0, 3.0])
        >>> times.mean, round(times.deviation, 3)
        (2.0, 1.0)
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Times:
        """Of some seconds."""
        times = cls()
        for seconds in values:
            times.add(seconds)
        return times

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self.total += seconds
        self.squares += seconds * seconds

    def __add__(self, other: Times) -> Times:
        return Times(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float:
        """Of at least one."""
        return self.total / self.count

    @property
    def deviation(self) -> float:
        """Standard deviation, of at least two."""
        return (max(self.squares - self.total * self.mean, 0.0) / (self.count - 1)) ** 0.5
