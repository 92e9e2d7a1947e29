"""The only source of randomness: Philox 4x32-10 counters and a table of normals.

Plain int64 arithmetic and a table look-up give the same bits on every device: no sine, no logarithm,
no generator state. Resuming a run needs no random state either, since every draw is a pure function
of (seed, role, matrix, index, step). Elements are addressed by their place in the whole matrix.

Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox 4x32.
"""

from __future__ import annotations

import functools
import hashlib
import math
from statistics import NormalDist

import torch

# Roles keep the streams of different uses apart.
ROLE_LEFT = 0
ROLE_RIGHT = 1
ROLE_SHUFFLE = 2

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF
_NORMALS_PER_BLOCK = 8  # four 32-bit words, two 16-bit halves each
_TABLE_SHA256 = "8babbcaf96568f10165a1eab530c0e5c92d04de96761b6dbb3dadfa94baba37f"


def philox(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: tuple[int, int]
) -> torch.Tensor:
    """Philox 4x32-10 of many counters at once.

    Args:
        counter: four int64 tensors of one shape [N] that hold 32-bit words.
        key: two 32-bit words.

    Returns:
        int64 [N, 4] of 32-bit words.

    Examples:
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> [hex(word) for word in philox((zero, zero, zero, zero), (0, 0))[0].tolist()]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The signed 64-bit product wraps, but its bits are those of the unsigned one.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


@functools.cache
def normal_table(device: torch.device) -> torch.Tensor:
    """Inverse normal distribution at 65,536 midpoints, float32 of unit variance.

    Raises:
        RuntimeError: if this machine's mathematics library gives other bits than every other machine's.
    """
    size = 1 << 16
    normal = NormalDist()
    upper = [normal.inv_cdf((i + 0.5) / size) for i in range(size // 2, size)]
    deviation = math.sqrt(2.0 * math.fsum(z * z for z in upper) / size)
    half = torch.tensor([z / deviation for z in upper], dtype=torch.float64)
    table = torch.cat((-half.flip(0), half)).to(torch.float32)
    digest = hashlib.sha256(table.numpy().tobytes()).hexdigest()
    if digest != _TABLE_SHA256:
        raise RuntimeError(f"the table of normals has digest {digest}, not {_TABLE_SHA256}: runs would not reproduce")
    return table.to(device)


@functools.lru_cache(maxsize=16)
def _blocks(
    counts: tuple[int, ...], starts: tuple[int, ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Block and matrix counter of every Philox call, and which normals to keep (None: all)."""
    block, matrix, keep = [], [], []
    for index, (start, count) in enumerate(zip(starts, counts, strict=True)):
        blocks = torch.arange(start // _NORMALS_PER_BLOCK, -(-(start + count) // _NORMALS_PER_BLOCK), dtype=torch.int64)
        block.append(blocks)
        matrix.append(torch.full_like(blocks, index))
        element = (blocks[:, None] * _NORMALS_PER_BLOCK + torch.arange(_NORMALS_PER_BLOCK)).flatten()
        keep.append((element >= start) & (element < start + count))
    mask = torch.cat(keep)
    kept = None if bool(mask.all()) else mask.nonzero().squeeze(-1).to(device)
    return torch.cat(block).to(device), torch.cat(matrix).to(device), kept


def normals(
    seed: int,
    role: int,
    *,
    step: int,
    index: int,
    counts: tuple[int, ...],
    starts: tuple[int, ...] | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Standard normals for every matrix of a model, matrix after matrix.

    Args:
        seed: the run's 32-bit seed.
        role: one of the ``ROLE_*`` constants.
        step: optimizer step, or the stage for right factors.
        index: which direction of the step.
        counts: number of elements of each matrix.
        starts: first element of each matrix (None: 0), so that a shard has the bits of the whole.
        device: where to make them; the bits do not depend on it.

    Returns:
        float32 [sum(counts)].

    Examples:
        >>> draw = normals(7, ROLE_LEFT, step=0, index=0, counts=(3, 5))
        >>> torch.equal(draw[:3], normals(7, ROLE_LEFT, step=0, index=0, counts=(3,)))
        True
        >>> torch.equal(draw[4:], normals(7, ROLE_LEFT, step=0, index=0, counts=(0, 4), starts=(3, 1)))
        True
    """
    device, starts = torch.device(device), starts or (0,) * len(counts)
    if device.type == "cpu":
        from zo_lightning.kernels import philox as compiled

        return compiled.normals(normal_table(device), (seed & _MASK, role), index, step, starts, counts)
    block, matrix, kept = _blocks(counts, starts, device)
    words = philox((block, matrix, torch.full_like(block, index), torch.full_like(block, step)), (seed & _MASK, role))
    halves = torch.stack((words & 0xFFFF, words >> 16), dim=-1).flatten()
    drawn = normal_table(device)[halves]
    return drawn if kept is None else drawn[kept]


def permutation(seed: int, size: int, *, epoch: int) -> list[int]:
    """A permutation of ``range(size)`` that depends on (seed, epoch) alone.

    Examples:
        >>> sorted(permutation(1, 5, epoch=0))
        [0, 1, 2, 3, 4]
        >>> permutation(1, 5, epoch=0) == permutation(1, 5, epoch=1)
        False
    """
    element = torch.arange(size, dtype=torch.int64)
    zero = torch.zeros_like(element)
    words = philox((element, zero, zero, torch.full_like(element, epoch)), (seed & _MASK, ROLE_SHUFFLE))
    return torch.argsort((words[:, 0] << 31) | (words[:, 1] >> 1), stable=True).tolist()
