"""Shards of the flat state: consecutive pieces of parameters, cut where vector loops begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def runs(pieces: Sequence[Piece], kinds: Sequence[object]) -> Iterator[slice]:
    """Which pieces are one tensor, to whoever keeps parameters one after another from multiples of ``ALIGNMENT`` on.

    Args:
        pieces: consecutive ones.
        kinds: of each; a run is of one kind.

    Examples:
        >>> pieces = [Piece(0, 64, 128), Piece(1, 0, 30), Piece(2, 0, 64), Piece(3, 0, 64)]
        >>> list(runs(pieces, "aaab"))
        [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    start = 0
    for index in range(1, len(pieces) + 1):
        if index == len(pieces) or kinds[index] != kinds[start] or pieces[index - 1].stop % ALIGNMENT:
            yield slice(start, index)
            start = index
