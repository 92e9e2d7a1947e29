"""Both ways to hold the factors of points, in float32: the products of a dense change of each point."""

from __future__ import annotations

import pytest
import torch

from zo_lightning.backends.packed.exact import ExactFactors
from zo_lightning.backends.packed.factors import SharedFactors, keys_of
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.types import BankSpec, DirectionKey, Layout, MatrixSpec, Point, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.updates import Sgd

LAYOUT = Layout(
    model="any",
    matrices=(
        MatrixSpec(name="a", rows=6, cols=4),
        MatrixSpec(name="a.bias", rows=6, cols=1, vector=True),
        MatrixSpec(name="table", rows=20, cols=5),
    ),
    num_parameters=130,
)


def key(step: int, index: int = 0) -> DirectionKey:
    return DirectionKey(seed=1, step=step, stage=step // 2, index=index)


ONE, TWIN, OTHER = key(4), key(4, 1), key(0)
POINTS = {
    "an antithetic pair": [((ONE, 0.1),), ((ONE, -0.1),)],
    "the centre": [()],
    "the centre beside a pair": [(), ((ONE, 0.1),), ((ONE, -0.1),)],
    "many directions": [((key(4, i), 0.1 * (i - 2)),) for i in range(5)],
    "two of one stage": [((ONE, 0.1), (TWIN, 0.2)), ((ONE, -0.3), (TWIN, 0.1))],
    "two of two stages, and one": [((ONE, 0.1), (OTHER, 0.2)), ((TWIN, 0.5),)],
}


@pytest.fixture
def bank() -> LowRankBank:
    bank = LowRankBank(BankSpec(rank=2, capacity=8), LAYOUT, LowRank(rank=2, refresh_every=2), Sgd(lr=1.0))
    for step in range(4):
        bank.commit(StepRecord(step=step, version=step, lr=0.1, terms=((key(step), 1.0 + step),)))
    return bank


@pytest.mark.parametrize("kind", ["exact", "shared"])
@pytest.mark.parametrize("terms", POINTS.values(), ids=POINTS)
def test_changes_are_those_of_dense_weights(bank: LowRankBank, terms: list, kind: str) -> None:
    factors = ExactFactors(bank) if kind == "exact" else SharedFactors(bank, torch.float32)
    points = [Point(version=4, terms=own) for own in terms]
    sequences = sorted([*points, *points], key=lambda point: [keys_of(p) for p in points].index(keys_of(point)))
    counts = [1 + 2 * i for i in range(len(sequences))]
    factors.program(sequences)
    factors.take(sequences, counts)
    assert factors.active
    tokens = sum(counts)
    inputs, outputs, ids = torch.randn(tokens, 4), torch.randn(tokens, 6), torch.arange(tokens) % 20
    added = factors.add(0, inputs, outputs.clone()) - outputs
    vector = factors.add(1, torch.ones(tokens, 1), torch.zeros(tokens, 6))
    rows = factors.rows(2, ids)
    start = 0
    for point, count in zip(sequences, counts, strict=True):
        own = slice(start, start + count)
        left = bank.point_left(point)
        weight, bias, table = (
            left[r] @ bank.right_IC[c].T for r, c in zip(bank.row_spans, bank.col_spans, strict=True)
        )
        assert torch.allclose(added[own], inputs[own] @ weight.T, atol=1e-5)
        assert torch.allclose(vector[own], bias.T.expand(count, -1), atol=1e-5)
        assert torch.allclose(rows[own], table[ids[own]], atol=1e-5)
        start += count
    factors.take(None, [])
    assert not factors.active and torch.equal(factors.add(0, inputs, outputs.clone()), outputs)
