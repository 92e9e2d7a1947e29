"""What undoing a step misses, in a few bits for each parameter: with it a rollback is exact, at any step.

Where old and new state are both at hand, the new one is undone and the difference to the old is written down in units
of the last place: mostly 0 or 1. Whoever has the new state, the gradient and the residuals then has the old state to
the last bit, whatever kernel or device did the step. A spike or the first steps cost more bits and nothing else, so
nothing has to be guarded.

The idea of storing what reversing a step loses is that of Maclaurin, Duvenaud and Adams (2015, arXiv:1502.03492) for
momentum.

Shapes: N = elements of one piece, n = of a block of it, B = bytes.
"""

from __future__ import annotations

import zlib

import torch

from zo_lightning.drain.adamw import AdamWState, Hyper, blocks
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.rollback import undo

_ESCAPED = 2  # of the four numbers that two bits can say, 0, 1, -2 and -1, the one that is in the bytes behind instead
_WIDE = -128  # what a byte says of a number that it cannot hold


def residuals(old: AdamWState, new: AdamWState, grad_N: torch.Tensor, hyper: Hyper) -> torch.Tensor:
    """What ``undo`` of ``new`` misses of ``old``, for the parameters and both moments.

    Args:
        old: float32 state before a step.
        new: state after it.
        grad_N: as logged.
        hyper: of the step.

    Returns:
        Packed bytes (B,), uint8, on the state's device: for each tensor 2 bits an element, a byte for each element that
        they cannot say, and four for each that a byte cannot.

    Raises:
        DrainError: for another type than float32.
    """
    _check_float32(new)
    if hyper.skipped:
        return torch.empty(0, dtype=torch.uint8, device=new.param.device)
    packed: list[list[torch.Tensor]] = [[] for _ in range(9)]  # codes, bytes and words of each of the three tensors
    for block in blocks(new.param):
        undone = new[block].clone()
        undo(undone, grad_N[block], hyper)
        pairs = zip(old[block].tensors().values(), undone.tensors().values(), strict=True)
        parts = (part for true_n, undone_n in pairs for part in _pack(_ordered(true_n) - _guess(undone_n)))
        for section, part in zip(packed, parts, strict=True):
            section.append(part)
    return torch.cat([part for section in packed for part in section])


def undo_exactly(state: AdamWState, grad_N: torch.Tensor, hyper: Hyper, packed_B: torch.Tensor) -> None:
    """Go one step back in place, to the very bits that were there.

    Args:
        state: float32, at the version that the step made, with the bits of ``new`` in ``residuals``.
        grad_N: as logged.
        hyper: of the step.
        packed_B: from ``residuals``.

    Raises:
        DrainError: where the bytes are those of another piece.
    """
    _check_float32(state)
    undo(state, grad_N, hyper)
    if hyper.skipped:
        return
    for tensor_N in state.tensors().values():
        residual_N, packed_B = _unpack(packed_B, len(tensor_N))
        tensor_N.copy_(_floats(_guess(tensor_N) + residual_N))
    if len(packed_B):
        raise DrainError("residuals of another piece: some are left over; restore from an older checkpoint")


def compress(packed_B: torch.Tensor) -> bytes:
    """Packed residuals for the disk: about 0.3 bytes a parameter in ordinary training."""
    deflate = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_RLE)  # no words recur, only runs and rates
    return deflate.compress(packed_B.cpu().numpy().tobytes()) + deflate.flush()


def decompress(data: bytes) -> torch.Tensor:
    """Undo ``compress``.

    Examples:
        >>> decompress(compress(torch.tensor([1, 2], dtype=torch.uint8))).tolist()
        [1, 2]
        >>> len(decompress(compress(torch.empty(0, dtype=torch.uint8))))
        0
    """
    plain = bytearray(zlib.decompress(data))
    return torch.frombuffer(plain, dtype=torch.uint8) if plain else torch.empty(0, dtype=torch.uint8)


def _check_float32(state: AdamWState) -> None:
    if any(tensor.dtype != torch.float32 for tensor in state.tensors().values()):
        raise DrainError(
            "residuals are of float32 states; take `checkpoint.drain.target=newest`, which only goes forward"
        )


def _ordered(tensor_N: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the numbers (N,), neighbours one apart; a sign alone is one too."""
    bits_N = tensor_N.contiguous().view(torch.int32)
    return bits_N ^ ((bits_N >> 31) & 0x7FFFFFFF)


def _floats(ordered_N: torch.Tensor) -> torch.Tensor:
    """Undo ``_ordered``."""
    return (ordered_N ^ ((ordered_N >> 31) & 0x7FFFFFFF)).view(torch.float32)


def _guess(undone_N: torch.Tensor) -> torch.Tensor:
    """What is corrected. What is not a number has other bits on another device, and becomes 0."""
    return _ordered(torch.nan_to_num(undone_N))


def _pack(residual_n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Codes, bytes and words of residuals, each as uint8. Differences wrap round, as adding them does."""
    escaped_n = (residual_n > 1) | (residual_n < -1)
    codes_n = torch.where(escaped_n, _ESCAPED, residual_n & 3).to(torch.uint8)
    fours = torch.nn.functional.pad(codes_n, (0, -len(codes_n) % 4)).view(-1, 4)
    codes = fours[:, 0] | fours[:, 1] << 2 | fours[:, 2] << 4 | fours[:, 3] << 6
    rest = residual_n[escaped_n]
    fits = (rest > _WIDE) & (rest < -_WIDE)
    return codes, torch.where(fits, rest, _WIDE).to(torch.int8).view(torch.uint8), rest[~fits].view(torch.uint8)


def _unpack(packed_B: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Residuals of one tensor (count,), and the bytes behind theirs."""
    packed, packed_B = _take(packed_B, -(-count // 4))
    codes_N = torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], dim=1).flatten()[:count]
    escaped_N = codes_N == _ESCAPED
    rest, packed_B = _take(packed_B, int(escaped_N.sum()))
    rest = rest.view(torch.int8).int()
    words, packed_B = _take(packed_B, 4 * int((rest == _WIDE).sum()))
    rest[rest == _WIDE] = words.clone().view(torch.int32)  # a copy is where an int32 may be
    residual_N = (codes_N.int() ^ 2) - 2  # two bits with their sign
    residual_N.masked_scatter_(escaped_N, rest)
    return residual_N, packed_B


def _take(packed_B: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    if count > len(packed_B):
        raise DrainError("residuals of another piece: some are missing; restore from an older checkpoint")
    return packed_B[:count], packed_B[count:]
