"""How ranks, and the workers of one engine, share things out."""

from __future__ import annotations

from typing import TypeVar

Item = TypeVar("Item")


def share(items: tuple[Item, ...], rank: int, size: int) -> tuple[Item, ...]:
    """A rank's contiguous part; empty for some where there are fewer items than ranks.

    Examples:
        >>> [share((1, 2, 3, 4, 5), rank, 2) for rank in range(2)], [share((1,), rank, 2) for rank in range(2)]
        ([(1, 2), (3, 4, 5)], [(), (1,)])
    """
    return items[len(items) * rank // size : len(items) * (rank + 1) // size]


def share_of_cores(cores: tuple[int, ...], rank: int, size: int) -> tuple[int, ...]:
    """A rank's processor cores, at least one.

    Examples:
        >>> share_of_cores((0, 1, 2, 3), 1, 2), share_of_cores((5, 6), 2, 3)
        ((2, 3), (5,))
    """
    return share(cores, rank, size) if len(cores) >= size else (cores[rank % len(cores)],)
