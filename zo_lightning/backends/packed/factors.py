"""The factors that the points of a batch add to its matrices.

Points that differ in nothing but coefficients (an antithetic pair) share all factors: the coefficients scale each
token's shrunken input. So one pass over a matrix's output adds what was learned and the probes of both:

    hidden = [x V | coefficient * (x V_slot)],   output += hidden [P | U]^T

A probe has rank columns of its own: with a half-precision base the sum ``P + eps * U`` would lose P.

Shape suffixes: T tokens, I inputs, O outputs, R a direction's columns, C columns of a pass, X those that are scaled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch

from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.types import DirectionKey, Point

Keys = tuple[DirectionKey, ...]
Drawn = tuple[int, torch.Tensor]  # a direction's slot in the bank, and its left factor over all matrices


def keys_of(point: Point) -> Keys:
    """The directions of a point, without coefficients."""
    return tuple(key for key, _ in point.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Left [O, C] and right [C, I] factors of every matrix; the last ``num_scaled`` columns are a point's own."""

    left: tuple[torch.Tensor, ...]
    right: tuple[torch.Tensor, ...]
    num_scaled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Columns that consecutive tokens take, and the coefficients of each token, float32 [T, X]."""

    tokens: slice
    columns: Columns
    scale: torch.Tensor | None = None


class Factors(Protocol):
    """Lays out the factors of points, and adds them to what a matrix puts out."""

    @property
    def active(self) -> bool:
        """Whether the batch that runs adds anything to the base."""
        ...

    def program(self, points: Sequence[Point]) -> None:
        """Make the factors of the points of an evaluation."""
        ...

    def changed(self, slots: Collection[int] | None) -> None:
        """Note what a commit has changed; None: everything."""
        ...

    def take(self, points: Sequence[Point] | None, counts: Sequence[int]) -> None:
        """Turn to a batch.

        Args:
            points: of its sequences, those with the same directions together; None is the base alone.
            counts: tokens of each sequence.
        """
        ...

    def add(self, matrix: int, input_TI: torch.Tensor, output_TO: torch.Tensor) -> torch.Tensor:
        """Add ``input @ change^T`` of one matrix to an output, in place."""
        ...

    def rows(self, matrix: int, ids_T: torch.Tensor) -> torch.Tensor:
        """What is added to rows of a matrix, each at its token's point: [T, I]."""
        ...


class SharedFactors:
    """Factors that points share, on any device.

    Args:
        bank: of the run.
        dtype: of the model. Vectors are added in float32.
    """

    def __init__(self, bank: LowRankBank, dtype: torch.dtype) -> None:
        self._passes: tuple[Pass, ...] = ()
        self._bank, self._dtype = bank, dtype
        self._learned: Columns | None = None
        self._own: dict[Keys, Columns] = {}
        self._rights: dict[tuple[int, tuple[int, ...]], tuple[torch.Tensor, ...]] = {}

    @property
    def active(self) -> bool:
        """Whether the batch that runs adds anything to the base."""
        return bool(self._passes)

    def program(self, points: Sequence[Point]) -> None:
        """Draw the directions of the points of an evaluation."""
        keys = dict.fromkeys(map(keys_of, points))
        # All draws first: a new stage may fold full slots into the base, which changes what every point has learned.
        drawn = {key: self._draw(key) for key in dict.fromkeys(key for group in keys for key in group)}
        together = len(keys) == 1  # what was learned and one set of directions take a single pass
        self._learned = None if together else self._columns([], learned=True)
        self._own = {group: self._columns([drawn[key] for key in group], learned=together) for group in keys}

    def changed(self, slots: Collection[int] | None) -> None:
        """Nothing to do: left factors are read anew for each evaluation."""

    def take(self, points: Sequence[Point] | None, counts: Sequence[int]) -> None:
        """Turn to a batch.

        Args:
            points: of its sequences, those with the same directions together; None is the base alone.
            counts: tokens of each sequence.
        """
        self._passes = ()
        if points is None:
            return
        passes = [Pass(tokens=slice(0, sum(counts)), columns=self._learned)] if self._learned else []
        start = 0
        for keys, group in groupby(zip(points, counts, strict=True), key=lambda sequence: keys_of(sequence[0])):
            own, lengths = zip(*group, strict=True)
            tokens = slice(start, start + sum(lengths))
            scale = self._scale(own, lengths) if keys else None
            passes.append(Pass(tokens=tokens, columns=self._own[keys], scale=scale))
            start = tokens.stop
        self._passes = tuple(each for each in passes if each.columns.right[0].shape[0])

    def add(self, matrix: int, input_TI: torch.Tensor, output_TO: torch.Tensor) -> torch.Tensor:
        """Add ``input @ change^T`` of one matrix to an output, in place."""
        for each in self._passes:
            hidden_TC = input_TI[each.tokens] @ each.columns.right[matrix].T
            output_TO[each.tokens].addmm_(_scaled(each, hidden_TC), each.columns.left[matrix].T)
        return output_TO

    def rows(self, matrix: int, ids_T: torch.Tensor) -> torch.Tensor:
        """What is added to rows of a matrix, each at its token's point: [T, I]."""
        cols = self._bank.layout.matrices[matrix].cols
        output_TI = torch.zeros(len(ids_T), cols, dtype=self._dtype, device=self._bank.device)
        for each in self._passes:
            hidden_TC = each.columns.left[matrix][ids_T[each.tokens]]
            output_TI[each.tokens].addmm_(_scaled(each, hidden_TC), each.columns.right[matrix])
        return output_TI

    def _draw(self, key: DirectionKey) -> Drawn:
        ((slot, left_OR),) = self._bank.probes(Point(version=self._bank.version, terms=((key, 1.0),))).items()
        return slot, left_OR

    def _columns(self, drawn: Sequence[Drawn], *, learned: bool) -> Columns:
        lefts = [self._bank.left_OC] if learned else []
        left_OC = torch.cat([*lefts, *(left_OR for _, left_OR in drawn)], dim=1) if lefts or drawn else None
        return Columns(
            left=self._cast(left_OC[rows] for rows in self._bank.row_spans) if left_OC is not None else (),
            right=self._right(tuple(slot for slot, _ in drawn), learned=learned),
            num_scaled=len(drawn) * self._bank.spec.rank,
        )

    def _right(self, slots: tuple[int, ...], *, learned: bool) -> tuple[torch.Tensor, ...]:
        """Right factors change with the stage alone, so they are kept."""
        bank = self._bank
        columns = list(range(bank.num_columns)) if learned else []
        for slot in slots:
            columns += range(bank.num_columns)[bank.columns(slot)]
        key = (bank.generation, tuple(columns))
        if key not in self._rights:
            self._rights = {kept: right for kept, right in self._rights.items() if kept[0] == bank.generation}
            self._rights[key] = self._cast(bank.right_IC[cols, columns].T.contiguous() for cols in bank.col_spans)
        return self._rights[key]

    def _cast(self, parts: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        matrices = self._bank.layout.matrices
        return tuple(
            part if matrix.vector else part.to(self._dtype) for matrix, part in zip(matrices, parts, strict=True)
        )

    def _scale(self, points: Sequence[Point], counts: Sequence[int]) -> torch.Tensor:
        device, rank = self._bank.device, self._bank.spec.rank
        coefficients = torch.tensor([[c for _, c in point.terms] for point in points], device=device)
        return coefficients.repeat_interleave(rank, 1).repeat_interleave(torch.tensor(counts, device=device), 0)


def _scaled(each: Pass, hidden_TC: torch.Tensor) -> torch.Tensor:
    if each.scale is not None:
        hidden_TC[:, -each.columns.num_scaled :] *= each.scale
    return hidden_TC
