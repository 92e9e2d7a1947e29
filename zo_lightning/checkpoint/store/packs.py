"""Where a checkpoint's tensors lie in its blocks: a large one in blocks of its own, small ones one after another.

A block is a file and a sync, so small tensors share them. A large one is cut so that what did not change since the last
save keeps its blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

BLOCK_BYTES = 4 << 20
# A tensor of at least this many bytes has blocks of its own, and a row of as many is cut from its neighbours: one
# column of a factor bank (`core/bank.py` keeps them one after another), which stays as it is while later ones are
# trained.
ROW_BYTES = 256 << 10

Place = dict[str, Any]
"""Where a tensor's bytes are: the names of its blocks, and for one in a pack the offset of its first byte there."""


def name_of(block: bytes | memoryview) -> str:
    """A block's name: the SHA-256 of its content.

    Examples:
        >>> name_of(b"")[:8]
        'e3b0c442'
    """
    return hashlib.sha256(block).hexdigest()


def cuts(size: int, row: int) -> Iterator[slice]:
    """Where ``size`` bytes in rows of ``row`` are cut: a large row by itself, small ones together.

    Examples:
        >>> list(cuts(2 * ROW_BYTES, ROW_BYTES)) == [slice(0, ROW_BYTES), slice(ROW_BYTES, 2 * ROW_BYTES)]
        True
        >>> list(cuts(100, 4)), list(cuts(0, 0))
        ([slice(0, 100, None)], [])
    """
    together = row if row >= ROW_BYTES else max(1, BLOCK_BYTES // max(1, row)) * row
    for start in range(0, size, max(1, together)):
        end = min(start + together, size)
        for first in range(start, end, BLOCK_BYTES):
            yield slice(first, min(first + BLOCK_BYTES, end))


class Packer:
    """Makes the blocks of a checkpoint that is written.

    Attributes:
        blocks: by name; views of the tensors where these have blocks of their own. The last pack is there once closed.

    Examples:
        >>> packer = Packer()
        >>> places = [packer.add(memoryview(data), row=1) for data in (b"small", b"tensors")]
        >>> packer.close()
        >>> [place["start"] for place in places], list(map(bytes, packer.blocks.values()))
        ([0, 5], [b'smalltensors'])
    """

    def __init__(self) -> None:
        self.blocks: dict[str, bytes | memoryview] = {}
        self._begin()

    def add(self, data: memoryview, row: int) -> Place:
        """Take a tensor's bytes, in rows of ``row``. Its place is whole once the pack is closed."""
        if len(data) >= ROW_BYTES:
            return {"blocks": [self._keep(data[piece]) for piece in cuts(len(data), row)]}
        if self._size + len(data) > BLOCK_BYTES:
            self.close()
        place = {"blocks": self._names, "start": self._size}
        self._parts.append(data)
        self._size += len(data)
        return place

    def close(self) -> None:
        """Make a block of the pack that is open, and begin another."""
        if self._parts:
            self._names.append(self._keep(b"".join(self._parts)))
        self._begin()

    def _begin(self) -> None:
        self._parts: list[memoryview] = []
        self._names: list[str] = []  # one list for all places in the pack, since its name follows from all of them
        self._size = 0

    def _keep(self, block: bytes | memoryview) -> str:
        name = name_of(block)
        self.blocks[name] = block
        return name


class Unpacker:
    """Reads the tensors' bytes of a checkpoint.

    Args:
        fetch: the content of a block, checked, by its name. A pack is fetched once for tensors that follow each other.
    """

    def __init__(self, fetch: Callable[[str], bytes]) -> None:
        self._fetch, self._fetch_pack = fetch, lru_cache(maxsize=1)(fetch)

    def bytes_of(self, place: Place, size: int) -> bytearray:
        """The ``size`` bytes at a place, a copy of their own, so that they are aligned wherever they were packed.

        Raises:
            ValueError: if they begin before their pack, or are in more than one.
        """
        if "start" not in place:
            return bytearray().join(map(self._fetch, place["blocks"]))
        (name,), start = place["blocks"], place["start"]
        if start < 0:
            raise ValueError(f"a tensor begins at {start}")
        return bytearray(memoryview(self._fetch_pack(name))[start : start + size])
