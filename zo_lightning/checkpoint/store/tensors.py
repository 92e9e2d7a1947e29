"""A tensor as blocks of bytes, cut so that what did not change since the last save keeps its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

BLOCK_BYTES = 4 << 20
# A row of at least this many bytes is cut from its neighbours: one column of a factor bank (`core/bank.py` keeps them
# one after another), which stays as it is while later ones are trained.
ROW_BYTES = 256 << 10

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
        torch.complex32,
        torch.complex64,
        torch.complex128,
    )
}


def memory_order(tensor: torch.Tensor) -> list[int]:
    """Dimensions from the outermost in memory to the innermost; as they are where the elements have gaps or overlap.

    Examples:
        >>> memory_order(torch.zeros(2, 3)), memory_order(torch.zeros(2, 3).T)
        ([0, 1], [1, 0])
    """
    plain = list(range(tensor.dim()))
    order = sorted(plain, key=tensor.stride().__getitem__, reverse=True)
    return plain if tensor.is_contiguous() or not tensor.permute(order).is_contiguous() else order


def blocks_of(tensor: torch.Tensor, order: list[int]) -> Iterator[memoryview]:
    """The tensor's bytes, little endian, its dimensions in ``order``, in blocks of at most ``BLOCK_BYTES``."""
    moved = tensor.detach().permute(order).cpu().resolve_conj().resolve_neg().contiguous()
    data = moved.reshape(-1).view(torch.uint8).numpy().data
    row = len(data) // moved.shape[0] if moved.dim() and len(data) else len(data)
    for piece in cuts(len(data), row):
        yield data[piece]


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


def tensor_of(blocks: Iterable[bytes], dtype: torch.dtype, shape: list[int], order: list[int]) -> torch.Tensor:
    """The tensor whose bytes, its dimensions in ``order``, are ``blocks``; on CPU.

    Raises:
        ValueError: if shape, order and bytes do not fit each other.
    """
    data = bytearray().join(blocks)
    moved = torch.empty(0, dtype=dtype) if not data else torch.frombuffer(data, dtype=dtype)
    if (
        sorted(order) != list(range(len(shape)))
        or moved.numel() != torch.Size(shape).numel()
        or min(shape, default=0) < 0
    ):
        raise ValueError(f"{len(data)} bytes do not make a {dtype} tensor of shape {shape}")
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return moved.view([shape[dim] for dim in order]).permute(inverse)
