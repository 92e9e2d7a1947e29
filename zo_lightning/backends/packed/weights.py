"""Base weights as they are held: plain, or laid out once for a faster product.

Shape suffixes: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from zo_lightning.backends.merging import add_product


class Weight:
    """A parameter of the base.

    Args:
        plain: the parameter.
    """

    def __init__(self, plain: torch.Tensor) -> None:
        self._plain = plain

    def read(self) -> torch.Tensor:
        """The parameter, bit by bit."""
        return self._plain

    def write(self, plain: torch.Tensor) -> None:
        """Replace the parameter's values."""
        self._plain.copy_(plain)

    def add(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        """Add factors to the parameter."""
        add_product(self._plain, left_OC, right_IC)

    def product(self, input_TI: torch.Tensor, bias_O: torch.Tensor | None, *, folded: bool) -> torch.Tensor:
        """``x W^T + b`` [T, O]; ``folded`` with the working copy, if there is one."""
        return linear(input_TI, self._plain, bias_O)


class PrepackedWeight(Weight):
    """A float32 matrix in oneDNN's layout, whose product is about a seventh faster; the plain one is not kept."""

    def __init__(self, plain: torch.Tensor) -> None:
        self.write(plain)

    def read(self) -> torch.Tensor:
        """The matrix [O, I], bit by bit."""
        return self._packed.to_dense()

    def write(self, plain: torch.Tensor) -> None:
        """Lay new values out."""
        self._packed = self._working = _packed(plain.detach())

    def add(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        """Add factors to the matrix."""
        self.write(self._sum(left_OC, right_IC))

    def fold(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        """Make a working copy of the weight plus these factors; without columns, it is the weight itself."""
        self._working = self._packed
        if left_OC.shape[1]:
            self._working = _packed(self._sum(left_OC, right_IC))

    def product(self, input_TI: torch.Tensor, bias_O: torch.Tensor | None, *, folded: bool) -> torch.Tensor:
        """``x W^T + b`` [T, O]; ``folded`` with the working copy."""
        packed = self._working if folded else self._packed
        return torch.ops.mkldnn._linear_pointwise(input_TI, packed, bias_O, "none", [], "")

    def _sum(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> torch.Tensor:
        plain = self.read()  # a tensor of its own
        add_product(plain, left_OC, right_IC)
        return plain


def _packed(plain: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(plain)
    return packed


def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN's product is there and is the faster one."""
    return device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available()
