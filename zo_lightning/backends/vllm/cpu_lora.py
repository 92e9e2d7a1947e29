"""Parameter points on CPU, where the engine's own adapters copy both factors for every token.

Here the linears are replaced as a whole: the factors of the open slots, a few columns, are added to the product in one
pass over the output (``kernels/low_rank.py``), and those of all other slots are in a packed working copy of the weights
(``backends/open_slots.py``). The base itself is only read.

Shape suffixes: O rows and I columns stacked over all matrices, C any columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from zo_lightning.backends.merging import add_product
from zo_lightning.backends.open_slots import OpenSlots
from zo_lightning.backends.vllm import internals
from zo_lightning.core.bank import LowRankBank, spans
from zo_lightning.kernels.low_rank import Part, add_low_rank, table


class CpuAdapters:
    """What the engine's linears compute for the tokens of a parameter point.

    Args:
        bank: the factors.
        layers: the engine's linears.
        places: the engine's slot of each adapter.
        fold: keep slots that are not probed in a working copy of the weights; needs float32.
    """

    def __init__(
        self, bank: LowRankBank, layers: Sequence[internals.AdapterLayer], places: Sequence[int], *, fold: bool
    ) -> None:
        self._places = places
        foldable = fold and layers[0].weight.dtype == torch.float32
        self.slots = OpenSlots(bank, self._fold if foldable else None)
        matrices = zip(bank.layout.matrices, bank.col_spans, bank.row_spans, strict=True)
        parts = {matrix.name: Part(cols.start, rows.start, 0, matrix.rows) for matrix, cols, rows in matrices}
        self._linears = [_Linear(layer, parts, self.slots) for layer in layers]

    def program(self, points: Sequence[dict[int, torch.Tensor]]) -> None:
        """Make adapter ``i`` stand for the bank and the probes ``points[i]``."""
        by_place: list[dict[int, torch.Tensor]] = [{} for _ in self._places]
        for place, probes in zip(self._places, points, strict=False):
            by_place[place] = probes
        self.slots.program(by_place)

    def changed(self, slots: set[int]) -> None:
        """Note that slots of the bank are no longer what the adapters hold."""
        self.slots.changed(slots)

    def forget(self) -> None:
        """Note that nothing of what the adapters hold is the bank's."""
        self.slots.forget()

    def base_changed(self) -> None:
        """Pack the base weights anew."""
        for linear in self._linears:
            linear.layer.repack()

    def _fold(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        for linear in self._linears:
            linear.fold(left_OC, right_IC)


class _Linear:
    """One linear of the engine."""

    def __init__(self, layer: internals.AdapterLayer, parts: Mapping[str, Part], slots: OpenSlots) -> None:
        self.layer, self._slots = layer, slots
        rows = spans(parts[name].num_rows for name in layer.names)
        self._parts = [parts[name]._replace(first_row=row.start) for name, row in zip(layer.names, rows, strict=True)]
        self._table = table(self._parts)
        self._working: internals.Product | None = None
        layer.replace(self.apply)

    def apply(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        runs = self.layer.runs
        output = self._product(inputs, bias, runs)
        if len(runs):
            add_low_rank(output, inputs, self._slots.right_CI, self._slots.left_ACO, self._table, runs)
        return output

    def fold(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        """Make the working copy: the base plus these factors, or none without them."""
        self._working = None
        if not left_OC.shape[1]:
            return
        weight = self.layer.weight.clone()
        for part in self._parts:
            left = left_OC[part.first_output : part.first_output + part.num_rows]
            right = right_IC[part.first_input : part.first_input + weight.shape[1]]
            add_product(weight[part.first_row : part.first_row + part.num_rows], left, right)
        self._working = internals.cpu_product(weight)

    def _product(self, inputs: torch.Tensor, bias: torch.Tensor | None, runs: np.ndarray) -> torch.Tensor:
        working = self._working
        if working is None or not len(runs):
            return self.layer.base(inputs, bias)
        if (runs[:, 2] - runs[:, 1]).sum() == len(inputs):
            return working(inputs, bias)
        output = self.layer.base(inputs, bias)  # some tokens have no adapter
        for _, start, end in runs.tolist():
            output[start:end] = working(inputs[start:end], bias)
        return output
