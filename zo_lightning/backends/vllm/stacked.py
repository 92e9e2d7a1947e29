"""Parameter points in the engine's own adapter tensors, which its GPU kernels read.

Shape suffixes: O rows and I columns stacked over all matrices, R one slot's rank columns, X any columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zo_lightning.core.bank import LowRankBank
from zo_lightning.errors import ConfigError

Slices = tuple[torch.Tensor, torch.Tensor]  # right [slots, 1, rank, inputs], left [slots, 1, outputs, rank]


class StackedAdapters:
    """Writes a point's factors into its adapter: only the columns that differ from what it holds.

    Args:
        bank: the factors.
        slices: the engine's tensors of each matrix, in the layout's order.
        places: the engine's slot of each adapter.
    """

    def __init__(self, bank: LowRankBank, slices: Sequence[Slices], places: Sequence[int]) -> None:
        self._bank, self._slices, self._places = bank, slices, places
        # Half-precision sums of P and eps*U would lose P: probes get their own columns.
        self._separate = slices[0][1].dtype != torch.float32
        self._generation = [-1] * len(places)
        self._stale: list[set[int]] = [set() for _ in places]
        self._probed: list[int | None] = [None] * len(places)  # whose right factors the probe columns hold

    def program(self, points: Sequence[dict[int, torch.Tensor]]) -> None:
        """Make adapter ``i`` stand for the bank and the probes ``points[i]``."""
        for adapter, probes in enumerate(points):
            if self._generation[adapter] != self._bank.generation:
                self._write_all(adapter)
            for slot in self._stale[adapter] | (set() if self._separate else set(probes)):
                left_OR = self._bank.left_OC[:, self._bank.columns(slot)]
                if not self._separate and slot in probes:
                    left_OR = left_OR + probes[slot]
                self._write_left(adapter, self._bank.columns(slot), left_OR)
            self._stale[adapter] = set() if self._separate else set(probes)
            if self._separate:
                self._write_probes(adapter, probes)

    def changed(self, slots: set[int]) -> None:
        """Note that slots of the bank are no longer what the adapters hold."""
        for stale in self._stale:
            stale |= slots

    def forget(self) -> None:
        """Note that nothing of what the adapters hold is the bank's."""
        self._generation = [-1] * len(self._places)

    def base_changed(self) -> None:
        """Nothing to do: the engine reads the base weights themselves."""

    def _write_all(self, adapter: int) -> None:
        everything = slice(0, self._bank.num_columns)
        for _, left in self._slices:  # a merge or a smaller snapshot leaves columns behind, and the kernels read all
            left[self._places[adapter]] = 0.0
        self._write_right(adapter, everything, self._bank.right_IC)
        self._write_left(adapter, everything, self._bank.left_OC)
        self._generation[adapter], self._stale[adapter] = self._bank.generation, set()
        self._probed[adapter] = None  # those columns may have moved, or their slot has other factors

    def _write_probes(self, adapter: int, probes: dict[int, torch.Tensor]) -> None:
        # One step's probes share a stage; the columns right behind the bank's are theirs.
        if len(probes) > 1:
            raise ConfigError(
                "half-precision probes have rank columns for one stage, and a point of this method has directions of "
                f"{len(probes)}: set `backend.dtype=float32`"
            )
        columns = slice(self._bank.num_columns, self._bank.num_columns + self._bank.spec.rank)
        zero_OR = torch.zeros(self._bank.layout.num_rows, self._bank.spec.rank, device=self._bank.device)
        self._write_left(adapter, columns, next(iter(probes.values()), zero_OR))
        for slot in probes:
            if self._probed[adapter] != slot:  # a stage keeps its right factors
                self._write_right(adapter, columns, self._bank.right_IC[:, self._bank.columns(slot)])
                self._probed[adapter] = slot

    def _write_left(self, adapter: int, columns: slice, left_OX: torch.Tensor) -> None:
        for (_, left), rows in zip(self._slices, self._bank.row_spans, strict=True):
            left[self._places[adapter], 0, :, columns] = left_OX[rows]

    def _write_right(self, adapter: int, columns: slice, right_IX: torch.Tensor) -> None:
        for (right, _), cols in zip(self._slices, self._bank.col_spans, strict=True):
            right[self._places[adapter], 0, columns] = right_IX[cols].T
