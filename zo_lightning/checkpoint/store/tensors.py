"""A tensor as bytes and back."""

from __future__ import annotations

import torch

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
    if tensor.is_contiguous():
        return plain
    order = sorted(plain, key=tensor.stride().__getitem__, reverse=True)
    return order if tensor.permute(order).is_contiguous() else plain


def bytes_of(tensor: torch.Tensor, order: list[int]) -> memoryview:
    """The tensor's bytes, little endian, its dimensions in ``order``; a view where it is on CPU and has no gaps."""
    moved = tensor.detach().permute(order).cpu().resolve_conj().resolve_neg().contiguous()
    return moved.reshape(-1).view(torch.uint8).numpy().data


def tensor_of(data: bytearray, dtype: torch.dtype, shape: list[int], order: list[int]) -> torch.Tensor:
    """The tensor whose bytes, its dimensions in ``order``, are ``data``, which it keeps; on CPU.

    Raises:
        ValueError: if shape, order and bytes do not fit each other.
    """
    moved = torch.empty(0, dtype=dtype) if not data else torch.frombuffer(data, dtype=dtype)
    if (
        sorted(order) != list(range(len(shape)))
        or moved.numel() != torch.Size(shape).numel()
        or min(shape, default=0) < 0
    ):
        raise ValueError(f"{len(data)} bytes do not make a {dtype} tensor of shape {shape}")
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return moved.view([shape[dim] for dim in order]).permute(inverse)
