"""Factors in an engine's stacked adapter tensors, on tensors of the engine's shapes."""

from __future__ import annotations

import pytest
import torch

from zo_lightning.backends.vllm.stacked import StackedAdapters
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.types import BankSpec, DirectionKey, Layout, MatrixSpec, Point, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.errors import ConfigError
from zo_lightning.updates import Sgd

RANK, EPS = 2, 1e-3
LAYOUT = Layout(
    model="two",
    matrices=(MatrixSpec(name="a", rows=5, cols=3), MatrixSpec(name="b", rows=4, cols=6)),
    num_parameters=39,
)
Tensors = list[tuple[torch.Tensor, torch.Tensor]]


def filled(dtype: torch.dtype, steps: int = 4) -> tuple[LowRankBank, StackedAdapters, Tensors]:
    """Two stages of steps, and two adapters in slots 1 and 0 whose tensors begin with rubbish."""
    direction = LowRank(rank=RANK, refresh_every=3)
    bank = LowRankBank(BankSpec(rank=RANK, capacity=8), LAYOUT, direction, Sgd(lr=1.0))
    for step in range(steps):
        (key,) = direction.keys(seed=7, step=step)
        bank.commit(StepRecord(step=step, version=step, lr=1e-6, terms=((key, 1.0 + step),)))
    tensors = [
        (torch.full((2, 1, 16, m.cols), 9.0, dtype=dtype), torch.full((2, 1, m.rows, 16), 9.0, dtype=dtype))
        for m in LAYOUT.matrices
    ]
    return bank, StackedAdapters(bank, tensors, [1, 0]), tensors


def probes(bank: LowRankBank, *signs: float, key: DirectionKey) -> list[dict[int, torch.Tensor]]:
    return [bank.probes(Point(version=bank.version, terms=((key, sign * EPS),))) for sign in signs]


KEY = LowRank(rank=RANK, refresh_every=3).keys(seed=7, step=4)[0]


def test_half_precision_probes_have_their_own_columns() -> None:
    """[P | eps U] against [V | V]: P is what it is alone, however small, under both probes."""
    bank, adapters, tensors = filled(torch.bfloat16)
    adapters.program(probes(bank, 1.0, -1.0, key=KEY))
    drawn = LowRank(rank=RANK, refresh_every=3).left(KEY, LAYOUT, torch.device("cpu"))
    held, probe = bank.num_columns, slice(bank.num_columns, bank.num_columns + RANK)
    assert held == 2 * RANK and 0 < float(bank.left_OC.abs().max()) < EPS
    for place, sign in ((1, 1.0), (0, -1.0)):
        for (right, left), rows, cols in zip(tensors, bank.row_spans, bank.col_spans, strict=True):
            assert torch.equal(left[place, 0, :, :held], bank.left_OC[rows].bfloat16())
            assert torch.equal(left[place, 0, :, probe], (drawn[rows] * (sign * EPS)).bfloat16())
            assert not left[place, 0, :, probe.stop :].any()
            right_CI = bank.right_IC[cols].T.bfloat16()
            assert torch.equal(right[place, 0, :held], right_CI)
            assert torch.equal(right[place, 0, probe], right_CI[bank.columns(KEY.stage)])


def test_right_factors_of_half_precision_probes_are_written_when_they_change() -> None:
    """Once a stage and adapter, and again where other factors take the slot's place; always what is probed."""
    direction = LowRank(rank=RANK, refresh_every=3)
    bank, adapters, tensors = filled(torch.bfloat16, steps=6)
    written = []
    for step in (6, 7, 8, 3, 8, 9):  # one stage, back to an earlier one, and a new one
        (key,) = direction.keys(seed=7, step=step)
        versions = [right._version for right, _ in tensors]
        adapters.program(probes(bank, 1.0, -1.0, key=key))
        written.append([right._version for right, _ in tensors] != versions)
        probe = slice(bank.num_columns, bank.num_columns + RANK)
        for place in (0, 1):
            for (right, _), cols in zip(tensors, bank.col_spans, strict=True):
                expected_CI = bank.right_IC[cols, bank.columns(key.stage)].T.bfloat16()
                assert torch.equal(right[place, 0, probe], expected_CI)
        if step < 8:
            adapters.changed(bank.commit(StepRecord(step=step, version=bank.version, lr=1e-3, terms=((key, 2.0),))))
    assert written == [True, False, False, True, True, True]
    bank.load(bank.snapshot())
    adapters.forget()
    for right, _ in tensors:
        right.zero_()
    adapters.program(probes(bank, 1.0, key=key))
    assert tensors[0][0][1, 0, probe].any()


def test_half_precision_probes_of_two_stages_are_refused() -> None:
    bank, adapters, _ = filled(torch.bfloat16)
    both = Point(version=bank.version, terms=((KEY, EPS), (DirectionKey(seed=7, step=0, stage=0), EPS)))
    with pytest.raises(ConfigError, match=r"one stage.*directions of 2: set `backend\.dtype=float32`"):
        adapters.program([bank.probes(both)])


def test_single_precision_adapters_hold_their_point_after_every_change() -> None:
    bank, adapters, tensors = filled(torch.float32)
    for step in range(4, 8):
        (key,) = LowRank(rank=RANK, refresh_every=3).keys(seed=7, step=step)
        signs = (1.0, -1.0) if step % 2 else (-1.0,)
        adapters.program(probes(bank, *signs, key=key))
        for place, sign in zip((1, 0), signs, strict=False):
            left_OC = bank.point_left(Point(version=bank.version, terms=((key, sign * EPS),)))
            for (right, left), rows, cols in zip(tensors, bank.row_spans, bank.col_spans, strict=True):
                assert torch.equal(left[place, 0, :, : bank.num_columns], left_OC[rows])
                assert not left[place, 0, :, bank.num_columns :].any()  # kernels read all columns
                assert torch.equal(right[place, 0, : bank.num_columns], bank.right_IC[cols].T)
        adapters.changed(bank.commit(StepRecord(step=step, version=step, lr=1e-3, terms=((key, 2.0),))))
