"""The factor bank against references written as loops, its policies, and its snapshots."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.types import BankSpec, DirectionKey, Layout, MatrixSpec, Point, StepRecord, Term
from zo_lightning.directions import LowRank
from zo_lightning.errors import ConfigError, StaleVersionError
from zo_lightning.updates import Sgd

CPU = torch.device("cpu")
DIRECTION = LowRank(rank=2, refresh_every=3)
CYCLIC = LowRank(rank=2, refresh_every=1, cycle=4)
SPEC = BankSpec(rank=2, capacity=8)
SEED = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum:
    """An update with state: ``m = beta m + c U``, ``P -= lr m``."""

    lr: float
    beta: float = 0.9

    def init(self, left_OR: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"momentum": torch.zeros_like(left_OR), "count": torch.zeros((), dtype=torch.int64)}

    def apply(
        self,
        left_OR: torch.Tensor,
        terms: Sequence[tuple[float, torch.Tensor]],
        lr: float,
        state: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        momentum = state["momentum"] * self.beta
        for coefficient, drawn_OR in terms:
            momentum = momentum + drawn_OR * coefficient
        return left_OR - momentum * lr, {"momentum": momentum, "count": state["count"] + 1}


def make(layout: Layout, *, spec: BankSpec = SPEC, direction: Any = DIRECTION, update: Any = None, fold: Any = None):
    return LowRankBank(spec, layout, direction, update or Sgd(lr=1.0), fold=fold)


def record(step: int, direction: LowRank, *, version: int | None = None, coefficient: float | None = None):
    """The record of a step with one term; its numbers are chosen so that products round."""
    (key,) = direction.keys(seed=SEED, step=step)
    c = coefficient if coefficient is not None else 0.1 * (1 + step % 7) * (-1) ** step
    return StepRecord(step=step, version=step if version is None else version, lr=0.003, terms=((key, c),))


def left(key: DirectionKey, layout: Layout, direction: LowRank = DIRECTION) -> torch.Tensor:
    return direction.left(key, layout, CPU)


def dense_change(records: Sequence[StepRecord], layout: Layout, direction: LowRank) -> torch.Tensor:
    """``-sum(lr c U V^T)`` over records, matrix by matrix, in float64: what a run has changed. [O, I]."""
    total = torch.zeros(layout.num_rows, layout.num_cols, dtype=torch.float64)
    for done in records:
        for key, c in done.terms:
            U_OR, V_IR = left(key, layout, direction).double(), direction.right(key, layout, CPU).double()
            total -= done.lr * c * (U_OR @ V_IR.T)
    return total


def change(bank: LowRankBank) -> torch.Tensor:
    return bank.left_OC.double() @ bank.right_IC.double().T


# --- commit, probes, points


def test_commit_is_an_unfused_multiply_then_add_bit_by_bit(small_layout: Layout) -> None:
    bank = make(small_layout)
    records = [record(step, DIRECTION) for step in range(9)]
    reference = np.zeros((small_layout.num_rows, 6), dtype=np.float32)
    for done in records:
        bank.commit(done)
        ((key, c),) = done.terms
        drawn = left(key, small_layout).numpy()
        for row in range(small_layout.num_rows):
            for column in range(2):
                product = drawn[row, column] * np.float32(-done.lr * c)
                reference[row, 2 * key.stage + column] += product
    assert bank.num_columns == 6 and bank.version == 9
    assert np.array_equal(bank.left_OC.numpy(), reference)


def test_right_factors_are_each_stages_own(small_layout: Layout) -> None:
    bank = make(small_layout)
    for step in range(9):
        bank.commit(record(step, DIRECTION))
    for stage in range(3):
        key = DirectionKey(seed=SEED, step=0, stage=stage)
        assert torch.equal(bank.right_IC[:, bank.columns(stage)], DIRECTION.right(key, small_layout, CPU))


def test_a_record_of_several_terms_adds_them_in_order(small_layout: Layout) -> None:
    bank, one_by_one = make(small_layout), make(small_layout)
    keys = [DirectionKey(seed=SEED, step=0, stage=0, index=index) for index in range(3)]
    terms = tuple((key, 0.3 * (i + 1)) for i, key in enumerate(keys))
    changed = bank.commit(StepRecord(step=0, version=0, lr=0.1, terms=terms))
    for version, term in enumerate(terms):
        one_by_one.commit(StepRecord(step=0, version=version, lr=0.1, terms=(term,)))
    assert changed == {0}
    assert torch.equal(bank.left_OC, one_by_one.left_OC)


def test_a_point_adds_its_terms_to_the_left_factors(small_layout: Layout) -> None:
    bank = make(small_layout)
    for step in range(4):
        bank.commit(record(step, DIRECTION))
    before = bank.left_OC.clone()
    terms: tuple[Term, ...] = (
        (DirectionKey(seed=SEED, step=4, stage=1), 1e-3),
        (DirectionKey(seed=SEED, step=4, stage=1, index=1), -2e-3),
        (DirectionKey(seed=SEED, step=9, stage=0), 0.5),
    )
    expected = before.clone().double()
    for row in range(small_layout.num_rows):
        for key, coefficient in terms:
            for column in range(2):
                expected[row, 2 * key.stage + column] += coefficient * float(left(key, small_layout)[row, column])
    probes = bank.probes(Point(version=4, terms=terms))
    assert set(probes) == {0, 1}
    torch.testing.assert_close(bank.point_left(Point(version=4, terms=terms)).double(), expected)
    assert torch.equal(bank.left_OC, before)  # a probe changes nothing
    assert bank.probes(Point(version=4)) == {} and torch.equal(bank.point_left(Point(version=4)), before)


def test_antithetic_probes_mirror_each_other_and_a_new_stage_takes_its_slot(small_layout: Layout) -> None:
    bank = make(small_layout)
    bank.commit(record(0, DIRECTION))
    (key,) = DIRECTION.keys(seed=SEED, step=3)
    plus, minus = (bank.point_left(Point(version=1, terms=((key, sign * 0.1),))) for sign in (1, -1))
    assert plus.shape == minus.shape == (small_layout.num_rows, 4)
    assert torch.equal(plus[:, 2:], -minus[:, 2:]) and torch.equal(plus[:, :2], minus[:, :2])


# --- versions and skipped steps


def test_another_version_is_refused_and_changes_nothing(small_layout: Layout) -> None:
    bank = make(small_layout)
    bank.commit(record(0, DIRECTION))
    before = bank.left_OC.clone()
    for version in (0, 2):
        with pytest.raises(StaleVersionError, match=f"version {version} .* version 1"):
            bank.commit(record(1, DIRECTION, version=version))
        with pytest.raises(StaleVersionError):
            bank.probes(Point(version=version))
    assert bank.version == 1 and torch.equal(bank.left_OC, before)


def test_a_skipped_step_advances_the_version_and_nothing_else(small_layout: Layout) -> None:
    bank = make(small_layout, update=Momentum(lr=1.0))
    bank.commit(record(0, DIRECTION))
    before = bank.snapshot()
    assert bank.commit(StepRecord(step=1, version=1, lr=0.1, terms=(), skipped=True)) == set()
    assert_same(bank.snapshot(), before | {"version": 2})


# --- policies


def test_twelve_cyclic_wraps_accumulate_into_the_same_four_slots(small_layout: Layout) -> None:
    bank = make(small_layout, direction=CYCLIC)
    records = [record(step, CYCLIC) for step in range(48)]
    reference: dict[int, np.ndarray] = defaultdict(lambda: np.zeros((small_layout.num_rows, 2), dtype=np.float32))
    for step, done in enumerate(records):
        bank.commit(done)
        ((key, c),) = done.terms
        assert key.stage == step % 4
        reference[key.stage] += left(key, small_layout, CYCLIC).numpy() * np.float32(-done.lr * c)
        if step == 3:
            right, generation = bank.right_IC.clone(), bank.generation
    assert bank.num_columns == 8 and bank.num_merged == 0
    assert bank.generation == generation and torch.equal(bank.right_IC, right)
    for stage in range(4):
        assert np.array_equal(bank.left_OC[:, bank.columns(stage)].numpy(), reference[stage])
    torch.testing.assert_close(change(bank), dense_change(records, small_layout, CYCLIC), atol=1e-6, rtol=1e-5)


def test_a_full_bank_that_refuses_says_which_key_to_raise(small_layout: Layout) -> None:
    bank = make(small_layout, spec=replace(SPEC, policy="refuse"), direction=LowRank(rank=2, refresh_every=1))
    for step in range(4):
        bank.commit(record(step, LowRank(rank=2, refresh_every=1)))
    before = bank.snapshot()
    with pytest.raises(ConfigError, match=r"4 slots are full: raise `bank\.capacity`"):
        bank.commit(record(4, LowRank(rank=2, refresh_every=1)))
    assert_same(bank.snapshot(), before)


@pytest.mark.parametrize("asked_by", ["probe", "commit"])
def test_merge_folds_the_completed_pairs_and_keeps_the_sum(small_layout: Layout, asked_by: str) -> None:
    folded = torch.zeros(small_layout.num_rows, small_layout.num_cols, dtype=torch.float64)
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []

    def fold(left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        calls.append((left_OC.clone(), right_IC.clone()))
        folded.add_(left_OC.double() @ right_IC.double().T)

    direction = LowRank(rank=2, refresh_every=2)
    bank = make(
        small_layout, spec=replace(SPEC, policy="merge"), direction=direction, update=Momentum(lr=1.0), fold=fold
    )
    records = [record(step, direction) for step in range(8)]  # four stages fill four slots
    for done in records:
        bank.commit(done)
    assert calls == [] and bank.num_columns == 8
    left_OC, right_IC, total = bank.left_OC.clone(), bank.right_IC.clone(), change(bank)
    ninth = record(8, direction)
    if asked_by == "probe":
        bank.probes(Point(version=8, terms=ninth.terms))
        torch.testing.assert_close(folded + change(bank), total)
    bank.commit(ninth)
    ((key, c),) = ninth.terms
    step_9 = -ninth.lr * c * left(key, small_layout).double() @ direction.right(key, small_layout, CPU).double().T
    ((folded_left, folded_right),) = calls
    assert torch.equal(folded_left, left_OC) and torch.equal(folded_right, right_IC)
    assert bank.num_merged == 1 and bank.num_columns == 2
    torch.testing.assert_close(folded + change(bank), total + step_9)
    assert bank.snapshot()["state"][0]["count"] == 1  # the new stage starts with a fresh state


# --- snapshots


def assert_same(one: Any, other: Any) -> None:
    """The same containers with the same bits."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    else:
        assert one == other


def through_a_file(snapshot: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(snapshot, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("stop", [0, 1, 3, 7, 30])
def test_a_restored_bank_goes_on_as_the_unbroken_one(small_layout: Layout, stop: int) -> None:
    unbroken, first, second = (make(small_layout, direction=CYCLIC, update=Momentum(lr=1.0)) for _ in range(3))
    for step in range(stop):
        first.commit(record(step, CYCLIC))
    second.commit(record(0, CYCLIC))  # whatever it held is gone after `load`
    second.load(through_a_file(first.snapshot()))
    assert_same(second.snapshot(), first.snapshot())
    assert torch.equal(second.right_IC, first.right_IC)
    for step in range(40):
        unbroken.commit(record(step, CYCLIC))
    for step in range(stop, 40):
        second.commit(record(step, CYCLIC))
    assert_same(second.snapshot(), unbroken.snapshot())


def test_a_snapshot_is_a_copy(small_layout: Layout) -> None:
    bank = make(small_layout, update=Momentum(lr=1.0))
    bank.commit(record(0, DIRECTION))
    snapshot = bank.snapshot()
    kept = through_a_file(snapshot)
    bank.commit(record(1, DIRECTION))
    assert_same(snapshot, kept)


def of_rank_4(layout: Layout) -> LowRankBank:
    return make(layout, spec=BankSpec(rank=4, capacity=8), direction=replace(DIRECTION, rank=4))


def of_another_model(layout: Layout) -> LowRankBank:
    return make(replace(layout, matrices=(*layout.matrices, MatrixSpec(name="c", rows=1, cols=1))))


def with_five_slots_filled(layout: Layout) -> LowRankBank:
    bank = make(layout, spec=BankSpec(rank=2, capacity=16))
    for step in range(0, 15, 3):
        bank.commit(record(step, DIRECTION, version=bank.version))
    return bank


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (of_rank_4, "`direction.rank`"),
        (of_another_model, "`model`"),
        (with_five_slots_filled, "`bank.capacity` to at least 10"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused_by_the_key_to_change(
    small_layout: Layout, other: Callable[[Layout], LowRankBank], key: str
) -> None:
    bank = make(small_layout)
    bank.commit(record(0, DIRECTION))
    before = bank.snapshot()
    with pytest.raises(ConfigError, match=re.escape(key)):
        bank.load(other(small_layout).snapshot())
    assert_same(bank.snapshot(), before)


def test_a_larger_bank_takes_a_smaller_ones_snapshot(small_layout: Layout) -> None:
    bank, larger = make(small_layout), make(small_layout, spec=BankSpec(rank=2, capacity=16, policy="merge"))
    for step in range(12):
        bank.commit(record(step, DIRECTION))
    larger.load(bank.snapshot())
    larger.commit(record(12, DIRECTION))  # a fifth stage, which the smaller bank has no slot for
    assert larger.num_columns == 10 and torch.equal(larger.left_OC[:, :8], bank.left_OC)


def test_a_snapshot_from_before_a_merge_is_refused_after_it(small_layout: Layout) -> None:
    """The base weights that it belongs to are gone; silently it would be another model."""
    bank = make(small_layout, spec=replace(SPEC, policy="merge"), fold=lambda left_OC, right_IC: None)
    older = bank.snapshot()
    for step in range(13):
        bank.commit(record(step, DIRECTION))
    assert bank.num_merged == 1
    with pytest.raises(ConfigError, match=r"`bank\.policy=merge` has written"):
        bank.load(older)
    bank.load(bank.snapshot())  # one from after the merge brings its weights along
    assert bank.version == 13


# --- what the direction's settings mean for the bank


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("1/r", 0.25), ("1/sqrt(r)", 0.5)])
def test_scale_multiplies_probe_and_step_alike(small_layout: Layout, scale: Any, factor: float) -> None:
    plain = LowRank(rank=4, refresh_every=3)
    scaled = replace(plain, scale=scale)
    banks = [make(small_layout, spec=BankSpec(rank=4, capacity=8), direction=d) for d in (plain, scaled)]
    (key,) = plain.keys(seed=SEED, step=0)
    probes = [bank.probes(Point(version=0, terms=((key, 0.5),)))[0] for bank in banks]
    torch.testing.assert_close(probes[1], probes[0] * factor)
    for bank in banks:
        bank.commit(record(0, plain))
    torch.testing.assert_close(banks[1].left_OC, banks[0].left_OC * factor)
    assert torch.equal(banks[0].right_IC, banks[1].right_IC)
    entries = change(banks[1]).abs().mean() / change(banks[0]).abs().mean()
    assert float(entries) == pytest.approx(factor)


@pytest.mark.parametrize("refresh_update", ["paper", "released"])
def test_released_updates_along_another_direction_on_refresh_steps_only(refresh_update: Any) -> None:
    matrices = (MatrixSpec(name="a", rows=200, cols=100), MatrixSpec(name="b", rows=100, cols=200))
    layout = Layout(model="", matrices=matrices, num_parameters=40_000)
    direction = LowRank(rank=2, refresh_every=4, refresh_update=refresh_update)
    for step in range(9):
        (key,) = direction.keys(seed=SEED, step=step)
        bank = make(layout, direction=direction)
        measured = bank.probes(Point(version=0, terms=((key, 1.0),)))[0]
        bank.commit(StepRecord(step=step, version=0, lr=1.0, terms=((direction.applied_key(key), -1.0),)))
        assert bank.num_columns == 2  # the applied direction has the stage's own V
        cosine = float(torch.cosine_similarity(bank.left_OC.flatten(), measured.flatten(), dim=0))
        if refresh_update == "released" and step % 4 == 0:
            assert abs(cosine) < 4.5 / (600**0.5)
        else:
            assert torch.equal(bank.left_OC, measured)
