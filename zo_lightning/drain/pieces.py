"""Shards of the flat state: consecutive pieces of parameters, cut where vector loops begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zo_lightning.drain.adamw import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Piece:
    """The flat elements ``start:stop`` of one parameter, by its number."""

    param: int
    start: int
    stop: int


def cut(sizes: Sequence[int], num_shards: int) -> tuple[tuple[Piece, ...], ...]:
    """Shards of about the same size; a piece begins at a multiple of ``ALIGNMENT`` elements of its parameter.

    Args:
        sizes: elements of each parameter.
        num_shards: how many; with fewer aligned pieces than that some are empty.

    Examples:
        >>> [[(piece.start, piece.stop) for piece in shard] for shard in cut([200, 30], 2)]
        [[(0, 128)], [(128, 200), (0, 30)]]
    """
    total, first = sum(sizes), 0
    shards: list[list[Piece]] = [[] for _ in range(num_shards)]
    for param, size in enumerate(sizes):
        start = 0
        while start < size:
            shard = (first + start) * num_shards // total
            end = -(-total * (shard + 1) // num_shards) - first
            stop = min(size, -(-end // ALIGNMENT) * ALIGNMENT)
            shards[shard].append(Piece(param, start, stop))
            start = stop
        first += size
    return tuple(tuple(shard) for shard in shards)
