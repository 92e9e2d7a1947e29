"""Normals from Philox 4x32-10 counters in a compiled loop, bit for bit those of ``core/rng.py``.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numba import njit, uint64

from zo_lightning.kernels.cache import CAN_KEEP

_MULTIPLIERS = (uint64(0xD2511F53), uint64(0xCD9E8D57))
_WEYL = (uint64(0x9E3779B9), uint64(0xBB67AE85))
_MASK, _HALF, _SHIFT, _HALF_SHIFT = uint64(0xFFFFFFFF), uint64(0xFFFF), uint64(32), uint64(16)
_PER_BLOCK = 8


@njit(cache=CAN_KEEP, error_model="numpy")
def _words(c0, c1, c2, c3, k0, k1):
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _MASK, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


@njit(cache=CAN_KEEP, error_model="numpy", nogil=True)
def _fill(drawn, table, seed, role, index, step, starts, counts):
    place = 0
    for matrix in range(len(counts)):
        start, stop = starts[matrix], starts[matrix] + counts[matrix]
        for block in range(start // _PER_BLOCK, -(-stop // _PER_BLOCK)):
            words = _words(uint64(block), uint64(matrix), uint64(index), uint64(step), uint64(seed), uint64(role))
            element = block * _PER_BLOCK
            for word in words:
                for half in (word & _HALF, word >> _HALF_SHIFT):
                    if start <= element < stop:
                        drawn[place] = table[half]
                        place += 1
                    element += 1


def normals(
    table: torch.Tensor, key: tuple[int, int], index: int, step: int, starts: Sequence[int], counts: Sequence[int]
) -> torch.Tensor:
    """Standard normals of every matrix.

    Args:
        table: float32 [65536], the normal of each 16-bit number.
        key: seed and role.
        index: third word of the counter; the first two are the block and the matrix.
        step: fourth word of the counter.
        starts: the first element of each matrix.
        counts: its number of elements.

    Returns:
        float32 [sum(counts)].
    """
    drawn = torch.empty(sum(counts))
    _fill(drawn.numpy(), table.numpy(), *key, index, step, np.array(starts, np.int64), np.array(counts, np.int64))
    return drawn
