"""The floor of a step: its products alone, at the rate of this machine's own matrix product."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from zo_lightning.backends.packed.weights import PrepackedWeight, Weight, can_prepack
from zo_lightning.bench.rows import Load
from zo_lightning.core.types import Layout, MatrixSpec


class Floor:
    """The linear layers of a model and its head as bare products: what a forward pass cannot do without.

    One weight stands for all matrices of its shape; each product runs as often as the model has such matrices. Weights
    are packed for this processor where torch can do that: engines do it too, and a floor must not lie above them.

    Args:
        layout: of the model, whatever else of it is trained.
        dtype: of weights and activations.
        device: where they are.
    """

    def __init__(self, layout: Layout, *, dtype: str, device: torch.device) -> None:
        self._settings = {"dtype": getattr(torch, dtype), "device": device}
        self._counts = Counter((matrix.rows, matrix.cols) for matrix in _linears(layout))
        self._head = head_shape(Path(layout.model))
        packs = can_prepack(device, self._settings["dtype"])
        kind = PrepackedWeight if packs else Weight
        self._weights = {shape: kind(self._filled(*shape)) for shape in {*self._counts, self._head}}

    def flops(self, load: Load) -> float:
        """Floating-point operations of a load."""
        linears = sum(count * rows * cols for (rows, cols), count in self._counts.items())
        return 2.0 * (load.tokens * linears + load.scored * self._head[0] * self._head[1])

    @torch.inference_mode()
    def compute(self, load: Load) -> None:
        """Run the products of a load."""
        for shape, count in self._counts.items():
            inputs = self._filled(load.tokens, shape[1])
            for _ in range(count):
                self._weights[shape].product(inputs, None, folded=False)
        self._weights[self._head].product(self._filled(load.scored, self._head[1]), None, folded=False)

    def _filled(self, rows: int, cols: int) -> torch.Tensor:
        return torch.ones(rows, cols, **self._settings)


def head_shape(folder: Path) -> tuple[int, int]:
    """Rows and columns of the output projection."""
    from zo_lightning.models.layout import load_config

    config = load_config(folder)
    return config.vocab_size, getattr(config, "word_embed_proj_dim", config.hidden_size)


def analytic_overhead(layout: Layout, columns: int) -> float:
    """What factors add to the work of the linears inside the layers: ``columns * sum(m + n) / sum(m n)``.

    Examples:
        >>> from zo_lightning.core.types import MatrixSpec
        >>> square = MatrixSpec(name="model.layers.0.mlp", rows=8, cols=8)
        >>> analytic_overhead(Layout(model="", matrices=(square,), num_parameters=64), 2)
        0.5
    """
    linears = _linears(layout)
    return columns * sum(m.rows + m.cols for m in linears) / sum(m.rows * m.cols for m in linears)


def _linears(layout: Layout) -> list[MatrixSpec]:
    """What every token goes through: no embedding, head, norm or bias, which may be trained as well."""
    return [matrix for matrix in layout.matrices if ".layers." in matrix.name and not matrix.vector]
