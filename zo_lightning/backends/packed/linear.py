"""The modules that take the places of a model's own where something is trained.

Shape suffixes: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear

from zo_lightning.backends.packed.factors import Factors


class FactoredLinear(nn.Module):
    """A linear layer whose tokens add the factors of their points.

    Args:
        plain: the model's own.
        factors: of the batch.
        matrix: its place in the layout.
        prepack: lay a float32 weight out once for oneDNN's product on CPU, about a seventh faster than the ordinary
            one; the plain weight is then no longer held.
    """

    def __init__(self, plain: nn.Linear, factors: Factors, matrix: int, *, prepack: bool) -> None:
        super().__init__()
        self._factors, self._matrix, self._prepack = factors, matrix, prepack
        self.bias = plain.bias
        self.write(plain.weight)

    @property
    def weight(self) -> torch.Tensor:
        """The base's weight [O, I], bit by bit."""
        return self._weight.to_dense() if self._prepack else self._weight

    def write(self, weight_OI: torch.Tensor) -> None:
        """Replace the base's weight."""
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI) if self._prepack else weight_OI

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``x W^T + b``, and what the points of the tokens add."""
        input_TI = input.flatten(0, -2)
        output_TO = self._product(input_TI)
        return self._factors.add(self._matrix, input_TI, output_TO).view(*input.shape[:-1], -1)

    def _product(self, input_TI: torch.Tensor) -> torch.Tensor:
        if self._prepack:
            return torch.ops.mkldnn._linear_pointwise(input_TI, self._weight, self.bias, "none", [], "")
        return linear(input_TI, self._weight, self.bias)


def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN's prepacked product is there and is the faster one."""
    return device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available()
