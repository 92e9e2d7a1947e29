"""The modules that take the places of a model's own where something is trained.

Shape suffixes: B one, T tokens, I inputs, O outputs, N a vector's elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import embedding

from zo_lightning.backends.packed.factors import Factors
from zo_lightning.backends.packed.weights import PrepackedWeight, Weight
from zo_lightning.core.types import Layout
from zo_lightning.errors import EngineError


class FactoredLinear(nn.Module):
    """A linear layer whose tokens add the factors of their points.

    Args:
        weight: of the base.
        bias: of the base.
        factors: of the batch that runs.
        matrix: the weight's place in the layout.
        vector: the bias's place; None where it is not trained.
    """

    def __init__(
        self, weight: Weight, bias: torch.Tensor | None, factors: Factors, matrix: int, vector: int | None
    ) -> None:
        super().__init__()
        self._weight, self._bias, self._factors, self._matrix, self._vector = weight, bias, factors, matrix, vector

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``x W^T + b``, and what the points of the tokens add."""
        input_TI = input.flatten(0, -2)
        output_TO = self._weight.product(input_TI, self._bias, folded=self._factors.active)
        self._factors.add(self._matrix, input_TI, output_TO)
        if self._vector is not None and self._bias is not None and self._factors.active:
            output_TO += _vector(self._factors, self._vector, self._bias, len(input_TI))
        return output_TO.view(*input.shape[:-1], -1)


class FactoredNorm(nn.Module):
    """A norm with a weight, and perhaps a bias, of each token's own, in float32.

    Args:
        plain: the model's own.
        factors: of the batch that runs.
        places: the layout's places by parameter name.
    """

    def __init__(self, plain: nn.Module, factors: Factors, places: Mapping[str, int]) -> None:
        super().__init__()
        self._plain, self._factors, self._places = plain, factors, places
        neutral = {"weight": torch.ones_like, "bias": torch.zeros_like}
        self._neutral = {name: neutral[name](plain.get_parameter(name), dtype=torch.float32) for name in places}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The norm at each token's point; tokens stand in the second dimension, or in the first of two."""
        if not self._factors.active:
            return self._plain(input)
        num_tokens = input.shape[0] if input.dim() == 2 else input.shape[1]
        output = functional_call(self._plain, self._neutral, (input.float(),))
        for name, place in self._places.items():
            base_N = self._plain.get_parameter(name)
            changed_TN = base_N + _vector(self._factors, place, base_N, num_tokens)
            if input.dim() == 4:  # a norm of each head
                changed_TN = changed_TN[:, None]
            output = output * changed_TN if name == "weight" else output + changed_TN
        return output.to(input.dtype)


def _vector(factors: Factors, place: int, base_N: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """What is added to a vector at each token's point, float32 [T, N]: its right factor is that of an input of ones."""
    ones_T1 = torch.ones(num_tokens, 1, device=base_N.device)
    return factors.add(place, ones_T1, ones_T1.new_zeros(num_tokens, len(base_N)))


class FactoredEmbedding(nn.Module):
    """A table whose rows are looked up at each token's point.

    Args:
        plain: the model's own.
        factors: of the batch that runs.
        matrix: its place in the layout.
    """

    def __init__(self, plain: nn.Embedding, factors: Factors, matrix: int) -> None:
        super().__init__()
        self._table, self._factors, self._matrix = plain.weight, factors, matrix
        self._offset = getattr(plain, "offset", 0)  # OPT's positions start at 2

    def forward(self, input: torch.Tensor, *_: Any, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of ``input``, or of the positions where a model gives those."""
        ids_BT = (input if position_ids is None else position_ids) + self._offset
        return embedding(ids_BT, self._table) + self._factors.rows(self._matrix, ids_BT[0])


def install(model: nn.Module, layout: Layout, factors: Factors, *, prepack: bool) -> dict[str, Weight]:
    """Put the modules above into a model, in place of those that own the layout's parameters.

    Args:
        model: changed in place.
        layout: what is trained.
        factors: of the batches to come.
        prepack: lay out the weights of the linears in the layers; one after another, so that few are held twice.

    Returns:
        All weights of the base by parameter name.

    Raises:
        EngineError: for a parameter of a module of another kind.
    """
    weights = {name: Weight(parameter) for name, parameter in model.named_parameters()}
    places = {id(model.get_parameter(matrix.parameter)): place for place, matrix in enumerate(layout.matrices)}
    for owner in [name for name, _ in model.named_modules()]:
        module = model.get_submodule(owner)
        # By identity: a tied head shares the embedding's parameter, and so its factors.
        own = {name: places[id(p)] for name, p in module.named_parameters(recurse=False) if id(p) in places}
        if not own:
            continue
        if isinstance(module, nn.Linear):
            name = layout.matrices[own["weight"]].parameter
            if prepack and ".layers." in name:
                weights[name] = PrepackedWeight(module.weight)
            replacement: nn.Module = FactoredLinear(weights[name], module.bias, factors, own["weight"], own.get("bias"))
        elif isinstance(module, nn.Embedding):
            replacement = FactoredEmbedding(module, factors, own["weight"])
        elif "norm" in type(module).__name__.lower():
            replacement = FactoredNorm(module, factors, own)
        else:
            raise EngineError(
                f"`backend=packed` cannot train {owner}, a {type(module).__name__}: choose `backend=dense` or "
                "`model.trainable=linear`"
            )
        parent, _, last = owner.rpartition(".")
        setattr(model.get_submodule(parent), last, replacement)
    return weights
