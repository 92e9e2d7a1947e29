"""Adding factors to weights, without another tensor of a weight's size.

Shape suffixes: O rows and I columns of a weight, C any columns of the factors.
"""

from __future__ import annotations

import torch

_BLOCK = 1 << 22  # elements, whose float32 product (16 MiB) a large cache holds; many small blocks are slow on GPU


def add_product(weight: torch.Tensor, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
    """Add ``left @ right.T`` to a weight in place: summed in float32, and rounded to the weight's type once.

    Args:
        weight: [O, I], or [O] where I is 1.
        left_OC: float32.
        right_IC: float32.

    Examples:
        >>> weight = torch.tensor([[256.0, 1.0]], dtype=torch.bfloat16)
        >>> add_product(weight, torch.tensor([[0.75, 0.75]]), torch.ones(2, 2))  # 0.75 alone would be lost in 256
        >>> weight.tolist()
        [[258.0, 2.5]]
    """
    weight_OI = weight.view(len(left_OC), len(right_IC))
    if weight.dtype == torch.float32:
        weight_OI.addmm_(left_OC, right_IC.T)
        return
    rows = max(_BLOCK // len(right_IC), 1)
    for block_OI, block_OC in zip(weight_OI.split(rows), left_OC.split(rows), strict=True):
        block_OI.add_(block_OC @ right_IC.T)
