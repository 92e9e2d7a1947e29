"""Directions of layouts with vectors: a dense draw in the first column, whatever the rank and the scale."""

from __future__ import annotations

import math

import pytest
import torch

from zo_lightning.core.bank import LowRankBank, spans
from zo_lightning.core.types import BankSpec, DirectionKey, Layout, MatrixSpec, Point, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.updates import Sgd

CPU = torch.device("cpu")
KEY = DirectionKey(seed=3, step=5, stage=1)
LAYOUT = Layout(
    model="any",
    matrices=(
        MatrixSpec(name="a", rows=6, cols=4),
        MatrixSpec(name="norm.weight", rows=2000, cols=1, vector=True),
        MatrixSpec(name="b", rows=5, cols=3),
    ),
    num_parameters=2039,
)
PLAIN = Layout(
    model="any",
    matrices=tuple(MatrixSpec(name=m.name, rows=m.rows, cols=m.cols) for m in LAYOUT.matrices),
    num_parameters=2039,
)
ROWS, COLS = spans(m.rows for m in LAYOUT.matrices), spans(m.cols for m in LAYOUT.matrices)


@pytest.mark.parametrize("scale", ["none", "1/r", "1/sqrt(r)"])
@pytest.mark.parametrize("rank", [1, 3])
def test_a_vector_is_a_dense_draw_and_matrices_are_as_ever(rank: int, scale: str) -> None:
    direction = LowRank(rank=rank, refresh_every=4, scale=scale)  # type: ignore[arg-type]
    left, right = direction.left(KEY, LAYOUT, CPU), direction.right(KEY, LAYOUT, CPU)
    assert right[COLS[1]].tolist() == [[1.0] + [0.0] * (rank - 1)]
    assert not left[ROWS[1], 1:].any()
    dense = left[ROWS[1], 0]
    assert abs(float(dense.mean())) < 4 / math.sqrt(2000) and float(dense.std()) == pytest.approx(1.0, abs=0.06)
    other_left, other_right = direction.left(KEY, PLAIN, CPU), direction.right(KEY, PLAIN, CPU)
    for matrix in (0, 2):
        assert torch.equal(left[ROWS[matrix]], other_left[ROWS[matrix]])
        assert torch.equal(right[COLS[matrix]], other_right[COLS[matrix]])


def test_a_vector_collects_its_draws_over_all_slots() -> None:
    direction = LowRank(rank=2, refresh_every=1, scale="1/r")
    bank = LowRankBank(BankSpec(rank=2, capacity=6), LAYOUT, direction, Sgd(lr=1.0))
    expected = torch.zeros(2000)
    for step in range(3):
        key = DirectionKey(seed=3, step=step, stage=step)
        expected -= 0.5 * direction.left(key, LAYOUT, CPU)[ROWS[1], 0]
        bank.commit(StepRecord(step=step, version=step, lr=0.5, terms=((key, 1.0),)))
    left = bank.point_left(Point(version=3))
    assert torch.allclose((left[ROWS[1]] @ bank.right_IC[COLS[1]].T)[:, 0], expected, atol=1e-6)
