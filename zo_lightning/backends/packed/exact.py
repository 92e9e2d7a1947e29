"""Factors on CPU in float32, where the sum ``P + coefficient * U`` loses nothing: a compiled pass over the output.

Slots that no point probes do not change until the next stage: they can be folded into a working copy of the weights,
made anew from the base whenever a stage begins, so that a bank's rank costs no time.

Shape suffixes: T tokens, I inputs, O outputs, J and Q all matrices' inputs and outputs, C columns, A points.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

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
        self._bank, self._fold = bank, fold
        places = zip(bank.layout.matrices, bank.col_spans, bank.row_spans, strict=True)
        self._parts = [table([Part(cols.start, rows.start, 0, matrix.rows)]) for matrix, cols, rows in places]
        self._runs = table([])  # of the batch: point, first token, last token + 1
        self._points: dict[Point, int] = {}
        self._folded: tuple[int, list[int]] | None = None  # the bank's generation, and the slots in the working copy
        self._changed: set[int] = set()

    @property
    def active(self) -> bool:
        """Whether the batch that runs adds anything to the base."""
        return len(self._runs) > 0

    def program(self, points: Sequence[Point]) -> None:
        """Make the factors of the points of an evaluation."""
        bank = self._bank
        # All draws first: a new stage may fold full slots into the base, which changes what every point has learned.
        drawn = {point: bank.probes(point) for point in dict.fromkeys(points)}
        slots = self._open({slot for probes in drawn.values() for slot in probes})
        held = _columns(bank, slots)
        self._points = {point: place for place, point in enumerate(drawn)}
        self._right_CJ = bank.right_IC.T[held]
        self._left_ACQ = bank.left_OC.T[held].repeat(len(drawn), 1, 1)
        for left_CQ, probes in zip(self._left_ACQ, drawn.values(), strict=True):
            for slot, probe_OR in probes.items():
                left_CQ[bank.columns(slots.index(slot))] += probe_OR.T

    def changed(self, slots: Collection[int] | None) -> None:
        """Note what a commit has changed; None: everything."""
        if slots is None:
            self._folded = None
        else:
            self._changed |= set(slots)

    def _open(self, probed: Collection[int]) -> list[int]:
        """The slots whose factors points take; all others are in the working copy."""
        bank = self._bank
        every = range(bank.num_columns // bank.spec.rank)
        if self._fold is None:
            return [*every]
        latest = every if bank.latest is None else [bank.latest]
        rest = [slot for slot in every if slot not in (probed or latest)]
        if self._folded != (bank.generation, rest) or self._changed & set(rest):
            self._fold(bank.left_OC[:, _columns(bank, rest)], bank.right_IC[:, _columns(bank, rest)])
            self._folded, self._changed = (bank.generation, rest), set()
        return [slot for slot in every if slot not in rest]

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
            add_low_rank(output_TO, input_TI, self._right_CJ, self._left_ACQ, self._parts[matrix], self._runs)
        return output_TO

    def rows(self, matrix: int, ids_T: torch.Tensor) -> torch.Tensor:
        """What is added to rows of a matrix, each at its token's point: [T, I]."""
        rows, cols = self._bank.row_spans[matrix], self._bank.col_spans[matrix]
        changes = [
            self._left_ACQ[place][:, rows][:, ids_T[start:end]].T @ self._right_CJ[:, cols]
            for place, start, end in self._runs.tolist()
        ]
        return torch.cat(changes) if changes else self._right_CJ.new_zeros(len(ids_T), cols.stop - cols.start)


def _columns(bank: LowRankBank, slots: Sequence[int]) -> list[int]:
    return [column for slot in slots for column in range(bank.num_columns)[bank.columns(slot)]]
