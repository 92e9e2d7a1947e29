"""Banks on tensor-parallel shards hold the bits of the whole bank's rows and columns."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from tests.unit.test_bank import Momentum
from zo_lightning.core import rng
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.shards import cut, join, shard_layout, shard_of
from zo_lightning.core.types import BankSpec, Layout, MatrixSpec, Point, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.errors import ConfigError, EngineError
from zo_lightning.updates import Sgd

CPU = torch.device("cpu")
SEED = 42
# Odd sizes, so that shards begin in the middle of a Philox block of eight normals.
SHAPES = {"q_proj": (12, 6), "k_proj": (6, 6), "o_proj": (6, 12), "fc1": (20, 6), "fc2": (6, 20), "gate": (6, 6)}
WHOLE = Layout(
    model="tiny", matrices=tuple(MatrixSpec(name=n, rows=r, cols=c) for n, (r, c) in SHAPES.items()), num_parameters=792
)


def held(name: str, size: int) -> tuple[int, int]:
    """As vLLM splits: outputs of q, k, fc1; inputs of o, fc2; ``k_proj`` has two heads, and gate is not split."""
    rows, cols = SHAPES[name]
    if name in ("o_proj", "fc2"):
        return rows, cols // size
    if name == "gate":
        return rows, cols
    return rows // (min(size, 2) if name == "k_proj" else size), cols


def shards(size: int) -> list[Layout]:
    return [shard_layout(WHOLE, [held(name, size) for name in SHAPES], rank=rank, size=size) for rank in range(size)]


def places(layout: Layout, *, rows: bool) -> list[int]:
    """Where each row (or column) of a shard's stacked factors is in the whole one's."""
    found, start = [], 0
    for whole, part in zip(WHOLE.matrices, layout.matrices, strict=True):
        first, count = (part.first_row, part.rows) if rows else (part.first_col, part.cols)
        found += range(start + first, start + first + count)
        start += whole.rows if rows else whole.cols
    return found


def record(step: int, direction: LowRank) -> StepRecord:
    (key,) = direction.keys(seed=SEED, step=step)
    return StepRecord(step=step, version=step, lr=0.003, terms=((key, 0.1 * (1 + step % 7) * (-1) ** step),))


def trained(layout: Layout, direction: LowRank, steps: int, update: Any, **settings: Any) -> LowRankBank:
    bank = LowRankBank(
        BankSpec(rank=direction.rank, capacity=3 * direction.rank, **settings), layout, direction, update
    )
    for step in range(steps):
        bank.commit(record(step, direction))
    return bank


def test_any_range_of_a_draw_has_its_bits():
    whole = rng.normals(7, rng.ROLE_LEFT, step=3, index=1, counts=(37, 50))
    for start, count in product((0, 1, 7, 8, 9, 16), (0, 1, 5, 8, 20)):
        part = rng.normals(7, rng.ROLE_LEFT, step=3, index=1, counts=(2, count), starts=(4, start))
        assert torch.equal(part, torch.cat((whole[4:6], whole[37:][start : start + count])))


@pytest.mark.parametrize(("size", "rank"), list(product((1, 2, 4), (1, 2, 3))))
def test_factors_of_a_shard_are_those_of_the_whole(size: int, rank: int):
    direction = LowRank(rank=rank, refresh_every=3, scale="1/sqrt(r)")
    (key,) = direction.keys(seed=SEED, step=5)
    left, right = direction.left(key, WHOLE, CPU), direction.right(key, WHOLE, CPU)
    for shard in shards(size):
        assert torch.equal(direction.left(key, shard, CPU), left[places(shard, rows=True)])
        assert torch.equal(direction.right(key, shard, CPU), right[places(shard, rows=False)])


@pytest.mark.parametrize("update", [Sgd(lr=1.0), Momentum(lr=1.0)])
@pytest.mark.parametrize("size", [2, 4])
def test_a_bank_on_shards_is_the_whole_one_after_commits_and_probes(size: int, update: Any):
    direction = LowRank(rank=2, refresh_every=2, cycle=3)
    whole = trained(WHOLE, direction, 9, update)
    (key,) = direction.keys(seed=SEED, step=9)
    point = Point(version=9, terms=((key, 1e-3),))
    for shard in shards(size):
        bank = trained(shard, direction, 9, update)
        assert torch.equal(bank.left_OC, whole.left_OC[places(shard, rows=True)])
        assert torch.equal(bank.right_IC, whole.right_IC[places(shard, rows=False)])
        assert torch.equal(bank.point_left(point), whole.point_left(point)[places(shard, rows=True)])


def test_tiles_of_the_change_make_up_the_whole_change():
    direction = LowRank(rank=2, refresh_every=2, cycle=3)
    whole = trained(WHOLE, direction, 7, Sgd(lr=1.0))
    parts = [(shard, trained(shard, direction, 7, Sgd(lr=1.0))) for shard in shards(2)]
    for i, matrix in enumerate(WHOLE.matrices):
        change = whole.left_OC[whole.row_spans[i]] @ whole.right_IC[whole.col_spans[i]].T
        for layout, bank in parts:
            shard = layout.matrices[i]
            tile = bank.left_OC[bank.row_spans[i]] @ bank.right_IC[bank.col_spans[i]].T
            own = change[shard.first_row :, shard.first_col :][: shard.rows, : shard.cols]
            torch.testing.assert_close(tile, own, rtol=1e-5, atol=1e-7)
        covered = sum(b.layout.matrices[i].rows * b.layout.matrices[i].cols for _, b in parts)
        assert covered == matrix.rows * matrix.cols * (2 if matrix.name == "gate" else 1)


@pytest.mark.parametrize("update", [Sgd(lr=1.0), Momentum(lr=1.0)])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_checkpoint_is_whole_whatever_the_number_of_workers(size: int, update: Any):
    direction = LowRank(rank=2, refresh_every=2, cycle=3)
    expected = trained(WHOLE, direction, 5, update).snapshot()
    banks = [trained(shard, direction, 5, update) for shard in shards(size)]
    assert_equal(join([bank.snapshot() for bank in banks], WHOLE, shards(size)), expected)
    later = trained(WHOLE, direction, 9, update).snapshot()
    for shard in shards(size):
        bank = LowRankBank(BankSpec(rank=2, capacity=6), shard, direction, update)
        bank.load(cut(expected, WHOLE, shard))
        for step in range(5, 9):
            bank.commit(record(step, direction))
        assert_equal(bank.snapshot(), cut(later, WHOLE, shard))


def test_merged_weights_are_cut_and_joined():
    bank = trained(WHOLE, LowRank(rank=2, refresh_every=2, cycle=3), 1, Sgd(lr=1.0))
    weights = [torch.randn(matrix.rows, matrix.cols) for matrix in WHOLE.matrices]
    snapshot = {**bank.snapshot(), "merged": weights}
    parts = [cut(snapshot, WHOLE, shard) for shard in shards(4)]
    assert [tuple(weight.shape) for weight in parts[3]["merged"]] == [held(name, 4) for name in SHAPES]
    joined = join(parts, WHOLE, shards(4))
    assert all(torch.equal(a, b) for a, b in zip(joined["merged"], weights, strict=True))


def test_other_shapes_are_refused():
    matrix = MatrixSpec(name="k_proj", rows=6, cols=6)
    for rows, cols, size in ((4, 6, 2), (2, 6, 2), (6, 3, 3)):
        with pytest.raises(EngineError, match="k_proj"):
            shard_of(matrix, rows, cols, rank=0, size=size)
    bank = trained(shards(2)[0], LowRank(rank=2, refresh_every=2, cycle=3), 1, Sgd(lr=1.0))
    with pytest.raises(ConfigError, match="other matrices"):
        cut(bank.snapshot(), WHOLE, shards(2)[0])


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one.keys() == two.keys()
    assert torch.equal(one["left"], two["left"])
    for a, b in zip(one["state"], two["state"], strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    plain = one.keys() - {"left", "state"}
    assert {name: one[name] for name in plain} == {name: two[name] for name in plain}
