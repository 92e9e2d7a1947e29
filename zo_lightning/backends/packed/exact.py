"""Factors on CPU in float32: a compiled pass over the output adds those of the open slots.

All other slots are in a working copy of the weights, where there is one (``backends/open_slots.py``).

Shape suffixes: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from zo_lightning.backends.open_slots import OpenSlots
from zo_lightning.core.bank import Fold, LowRankBank, spans
from zo_lightning.core.types import Point
from zo_lightning.kernels.low_rank import Part, add_low_rank, table


class ExactFactors:
    """``Factors`` with left factors of each point's own.

    Args:
        bank: of the run.
        fold: makes the working copy of the weights: the base plus these factors. None: all slots stay factors.
    """

    def __init__(self, bank: LowRankBank, fold: Fold | None = None) -> None:
        self._bank, self._slots = bank, OpenSlots(bank, fold)
        places = zip(bank.layout.matrices, bank.col_spans, bank.row_spans, strict=True)
        self._parts = [table([Part(cols.start, rows.start, 0, matrix.rows)]) for matrix, cols, rows in places]
        self._runs = table([])  # of the batch: point, first token, last token + 1
        self._points: dict[Point, int] = {}

    @property
    def active(self) -> bool:
        """Whether the batch that runs adds anything to the base."""
        return len(self._runs) > 0

    def program(self, points: Sequence[Point]) -> None:
        """Make the factors of the points of an evaluation."""
        # All draws first: a new stage may fold full slots into the base, which changes what every point has learned.
        drawn = {point: self._bank.probes(point) for point in dict.fromkeys(points)}
        self._points = {point: place for place, point in enumerate(drawn)}
        self._slots.program([*drawn.values()])

    def changed(self, slots: Collection[int] | None) -> None:
        """Note what a commit has changed; None: everything."""
        if slots is None:
            self._slots.forget()
        else:
            self._slots.changed({*slots})

    def take(self, points: Sequence[Point] | None, counts: Sequence[int]) -> None:
        """Turn to a batch of sequences of ``counts`` tokens each at its point; without points, the base alone."""
        self._runs = table([])
        if points is None or not self._bank.num_columns:
            return
        runs: list[tuple[int, int, int]] = []
        for point, tokens in zip(points, spans(counts), strict=True):
            place = self._points[point]
            first = runs.pop()[1] if runs and runs[-1][0] == place else tokens.start
            runs.append((place, first, tokens.stop))
        self._runs = table(runs)

    def add(self, matrix: int, input_TI: torch.Tensor, output_TO: torch.Tensor) -> torch.Tensor:
        """Add ``input @ change^T`` of one matrix to an output, in place."""
        if self.active:
            add_low_rank(
                output_TO, input_TI, self._slots.right_CI, self._slots.left_ACO, self._parts[matrix], self._runs
            )
        return output_TO

    def rows(self, matrix: int, ids_T: torch.Tensor) -> torch.Tensor:
        """What is added to rows of a matrix, each at its token's point: [T, I]."""
        rows, cols = self._bank.row_spans[matrix], self._bank.col_spans[matrix]
        changes = [
            self._slots.left_ACO[place][:, rows][:, ids_T[start:end]].T @ self._slots.right_CI[:, cols]
            for place, start, end in self._runs.tolist()
        ]
        return torch.cat(changes) if changes else self._slots.right_CI.new_zeros(len(ids_T), cols.stop - cols.start)
