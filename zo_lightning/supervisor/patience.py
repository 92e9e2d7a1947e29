"""How long a run may be silent before it counts as hung: a multiple of what its steps have taken."""

from __future__ import annotations

import math
from collections import defaultdict, deque

_WINDOW = 200  # pieces of work that are remembered in each phase


class Patience:
    """The bound on silence, by phase.

    Until a phase has done a piece of work, nothing is known of it, and the bound is that of a start.

    Args:
        start: seconds while nothing is known.
        floor: seconds at least, once something is.
        factor: times the 95th percentile of the phase's pieces of work.

    Examples:
        >>> patience = Patience(start=600.0, floor=1.0, factor=10.0)
        >>> patience.bound("training")
        600.0
        >>> for _ in range(100):
        ...     patience.learn("training", 0.5)
        >>> patience.bound("training"), patience.bound("testing")
        (5.0, 600.0)
    """

    def __init__(self, *, start: float, floor: float, factor: float) -> None:
        self._start, self._floor, self._factor = start, floor, factor
        self._seconds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_WINDOW))

    def learn(self, phase: str, seconds: float) -> None:
        """A piece of work has taken so long."""
        self._seconds[phase].append(seconds)

    def bound(self, phase: str) -> float:
        """Seconds of silence after which a run in this phase counts as hung."""
        seconds = sorted(self._seconds[phase])
        if not seconds:
            return self._start
        return max(self._floor, self._factor * seconds[math.ceil(0.95 * len(seconds)) - 1])
