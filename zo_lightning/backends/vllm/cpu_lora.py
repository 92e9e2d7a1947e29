"""Parameter points on CPU, where the engine's own adapters copy both factors for every token.

Here the linears are replaced as a whole. The factors of the slots that a step probes, a few columns, are added to the
product in one pass (``kernels/low_rank.py``). Those of all other slots do not change until the next stage: they are
folded into a packed working copy of the weights, made anew from the base whenever a stage begins, so that a bank's rank
costs no time and nothing drifts. The base itself is only read.

Shape suffixes: O rows and I columns stacked over all matrices, A adapters, C columns of the open slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

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
        self._bank, self._places, self._fold = bank, places, fold and layers[0].weight.dtype == torch.float32
        self._open: list[int] = []
        self._generation = -1
        self._stale: set[int] = set()
        self._left_ACO = torch.zeros(max(places) + 1, 0, bank.layout.num_rows)
        self._right_CI = torch.zeros(0, bank.layout.num_cols)
        parts = _parts_by_name(bank)
        self._linears = [_Linear(layer, parts, self) for layer in layers]

    def program(self, points: Sequence[dict[int, torch.Tensor]]) -> None:
        """Make adapter ``i`` stand for the bank and the probes ``points[i]``."""
        probed = {slot for probes in points for slot in probes}
        if self._generation != self._bank.generation or not self._holds(probed):
            self._arrange(probed)
        for place, probes in zip(self._places, points, strict=False):
            for number, slot in enumerate(self._open):
                columns = slice(number * self._bank.spec.rank, (number + 1) * self._bank.spec.rank)
                left_RO = self._bank.left_OC[:, self._bank.columns(slot)].T
                if slot in probes:
                    torch.add(left_RO, probes[slot].T, out=self._left_ACO[place, columns])
                else:
                    self._left_ACO[place, columns] = left_RO

    def changed(self, slots: set[int]) -> None:
        """Note that slots of the bank are no longer what the adapters hold."""
        self._stale |= slots

    def forget(self) -> None:
        """Note that nothing of what the adapters hold is the bank's."""
        self._generation = -1

    def base_changed(self) -> None:
        """Pack the base weights anew."""
        for linear in self._linears:
            linear.layer.repack()

    def add(self, output: torch.Tensor, inputs: torch.Tensor, parts: np.ndarray, runs: np.ndarray) -> None:
        """Add the open slots' part to the rows of each run."""
        if self._open:
            add_low_rank(output, inputs, self._right_CI, self._left_ACO, parts, runs)

    def _holds(self, probed: set[int]) -> bool:
        return probed <= set(self._open) and self._stale <= set(self._open)

    def _arrange(self, probed: set[int]) -> None:
        """Choose the open slots and fold all others. The same bank and probes give the same bits, on resuming too."""
        bank, every = self._bank, list(range(self._bank.num_columns // self._bank.spec.rank))
        latest = {bank.latest} if bank.latest is not None else set(every)
        self._open = [slot for slot in every if not self._fold or slot in (probed or latest)]
        held = _columns(bank, self._open)
        self._right_CI = bank.right_IC[:, held].T.contiguous()
        self._left_ACO = self._left_ACO.new_zeros(self._left_ACO.shape[0], len(held), bank.layout.num_rows)
        folded = _columns(bank, [slot for slot in every if slot not in self._open])
        left_OC, right_IC = bank.left_OC[:, folded], bank.right_IC[:, folded]
        for linear in self._linears:
            linear.fold(left_OC, right_IC)
        self._generation, self._stale = bank.generation, set()


class _Linear:
    """One linear of the engine."""

    def __init__(self, layer: internals.AdapterLayer, parts: Mapping[str, Part], adapters: CpuAdapters) -> None:
        self.layer, self._adapters = layer, adapters
        rows = spans(parts[name].num_rows for name in layer.names)
        self._parts = [parts[name]._replace(first_row=row.start) for name, row in zip(layer.names, rows, strict=True)]
        self._table = table(self._parts)
        self._working: internals.Product | None = None
        layer.replace(self.apply)

    def apply(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        runs = self.layer.runs
        output = self._product(inputs, bias, runs)
        if len(runs):
            self._adapters.add(output, inputs, self._table, runs)
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
            weight[part.first_row : part.first_row + part.num_rows].addmm_(left, right.T)
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


def _parts_by_name(bank: LowRankBank) -> dict[str, Part]:
    places = zip(bank.layout.matrices, bank.col_spans, bank.row_spans, strict=True)
    return {m.name: Part(cols.start, rows.start, 0, m.rows) for m, cols, rows in places}


def _columns(bank: LowRankBank, slots: Sequence[int]) -> list[int]:
    return [column for slot in slots for column in range(bank.columns(slot).start, bank.columns(slot).stop)]
