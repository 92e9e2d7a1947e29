"""Memory that trainer and host process share: a few slots, each filled by one side and read by the other."""

from __future__ import annotations

import functools
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence

import torch

_LINE = 64  # bytes of a cache line: where each tensor begins
_VIEWS = 512  # lists of views that are kept: one window asks for the same as the one before it

Types = tuple[tuple[torch.dtype, int], ...]
"""Types and numbers of elements of tensors."""


def offsets(sizes: Sequence[int]) -> Iterator[int]:
    """Where each of some tensors begins, and where the last one ends, in bytes.

    Examples:
        >>> list(offsets([10, 64, 1]))
        [0, 64, 128, 192]
    """
    offset = 0
    yield offset
    for size in sizes:
        offset += -(-size // _LINE) * _LINE
        yield offset


def types_of(tensors: Sequence[torch.Tensor]) -> Types:
    """Those of some tensors."""
    return tuple((tensor.dtype, tensor.numel()) for tensor in tensors)


def size_of(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of all."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def span(types: Types) -> int:
    """Bytes that tensors of some types and sizes take, one after another."""
    *_, end = offsets([dtype.itemsize * numel for dtype, numel in types])
    return end


class Ring:
    """Slots in a file without a name, which is gone with the last process that has it open, however that ends.

    Args:
        descriptor: of the file.
        slot_bytes: size of a slot.
        depth: number of slots.
    """

    def __init__(self, descriptor: int, *, slot_bytes: int, depth: int) -> None:
        self.descriptor, self.slot_bytes, self.depth = descriptor, slot_bytes, depth
        self._map = mmap.mmap(descriptor, slot_bytes * depth)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._kept = functools.lru_cache(_VIEWS)(self._views)

    @classmethod
    def create(cls, *, slot_bytes: int, depth: int) -> Ring:
        """A new one, its memory reserved. Raises ``OSError`` where there is not so much."""
        descriptor = _unnamed_file()
        os.posix_fallocate(descriptor, 0, slot_bytes * depth)  # else a page that cannot be had is a fatal signal
        return cls(descriptor, slot_bytes=slot_bytes, depth=depth)

    def views(self, slot: int, types: Types) -> list[torch.Tensor]:
        """Flat tensors of some types and sizes, one after another in a slot."""
        return self._kept(slot, types)

    def _views(self, slot: int, types: Types) -> list[torch.Tensor]:
        sizes = [dtype.itemsize * numel for dtype, numel in types]
        pairs = zip(types, offsets(sizes), sizes)  # noqa: B905  offsets end with one more
        return [self.raw(slot, start, size).view(dtype) for (dtype, _), start, size in pairs]

    def raw(self, slot: int, start: int, size: int) -> torch.Tensor:
        """Bytes of a slot."""
        return self._bytes.narrow(0, slot * self.slot_bytes + start, size)

    def close(self) -> None:
        """Give the file back. The memory goes with the last tensor that shows it."""
        os.close(self.descriptor)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("zo-drain")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
