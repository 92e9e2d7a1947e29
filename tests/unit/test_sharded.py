"""Ranks as threads over gloo: what they see together, and what becomes of them when one goes astray."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore

from zo_lightning.backends.fake import FakeBackend
from zo_lightning.backends.ranks import Ranks
from zo_lightning.backends.sharded import ShardedBackend
from zo_lightning.backends.shares import share_of_cores
from zo_lightning.core.types import BankSpec, EvalRequest, Example, Layout, Observation, Point, Score, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.errors import ConfigError, RankError
from zo_lightning.updates import Sgd

DIRECTION = LowRank(rank=2, refresh_every=2, cycle=2)
(KEY,) = DIRECTION.keys(seed=7, step=0)


def on_ranks(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """What each rank returns, or the error that ended it."""
    store = HashStore()

    def run(rank: int) -> Any:
        try:
            ranks = Ranks(store, rank, size, timedelta(seconds=20))
            with ranks.telling():
                return work(ranks)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def opened(layout: Layout, policy: str = "cyclic") -> FakeBackend:
    backend = FakeBackend()
    backend.open(layout, DIRECTION, Sgd(lr=0.1), BankSpec(rank=2, capacity=4, policy=policy))
    return backend


def requests(examples: tuple[Example, ...], version: int) -> list[EvalRequest]:
    points = [Point(version=version, terms=((KEY, sign * 1e-2),)) for sign in (1.0, -1.0)]
    return [EvalRequest(point=point, examples=examples, objective=Score(loss="gold")) for point in points]


def commit(backend: Any, step: int, coefficient: float = 0.5) -> None:
    (key,) = DIRECTION.keys(seed=7, step=step)
    backend.commit(StepRecord(step=step, version=step, lr=0.1, terms=((key, coefficient),)))


def plain(seen: Observation) -> tuple[Any, ...]:
    """Without the time that it took."""
    return seen.losses, seen.weights, seen.scores, seen.tokens


@pytest.mark.parametrize(("size", "count"), [(2, 8), (2, 7), (3, 7), (3, 2), (3, 1)])
def test_ranks_together_see_what_one_sees(small_layout, small_examples, size, count):
    alone = opened(small_layout)
    commit(alone, 0)
    expected = [plain(seen) for seen in alone.evaluate(requests(small_examples[:count], 1))]

    def work(ranks: Ranks) -> Any:
        backend = ShardedBackend(opened(small_layout), ranks)
        commit(backend, 0)
        return [plain(seen) for seen in backend.evaluate(requests(small_examples[:count], 1))], backend.check_factors()

    results = on_ranks(size, work)
    assert [seen for seen, _ in results] == [expected] * size
    assert len({digest for _, digest in results}) == 1


def test_a_rank_without_a_share_takes_part_in_every_commit_and_merge(small_layout, small_examples):
    """A skipped step at the start of a stage, and one more: nothing but the visit takes the slot."""
    direction = LowRank(rank=2, refresh_every=2)

    def work(ranks: Ranks) -> Any:
        inner = FakeBackend()
        inner.open(small_layout, direction, Sgd(lr=0.1), BankSpec(rank=2, capacity=4, policy="merge"))
        backend = ShardedBackend(inner, ranks)
        for step in range(9):
            (key,) = direction.keys(seed=7, step=step)
            point = Point(version=step, terms=((key, 1e-2),))
            backend.evaluate([EvalRequest(point=point, examples=small_examples[:1], objective=Score(loss="gold"))])
            skipped = step >= 8
            terms = () if skipped else ((key, 0.5),)
            backend.commit(StepRecord(step=step, version=step, lr=0.1, terms=terms, skipped=skipped))
        return backend.check_factors(), backend.snapshot()["num_merged"], backend.digest().hex

    one, two = on_ranks(2, work)
    assert one == two and one[1] > 0


def test_losses_that_are_not_numbers_reach_every_rank(small_layout, small_examples):
    class Broken(FakeBackend):
        def evaluate(self, requests):
            return tuple(
                Observation(losses=(math.nan,) * len(r.examples), weights=(1.0,) * len(r.examples)) for r in requests
            )

    def work(ranks: Ranks) -> Any:
        backend = opened(small_layout) if ranks.rank else Broken()
        if not ranks.rank:
            backend.open(small_layout, DIRECTION, Sgd(lr=0.1), BankSpec(rank=2, capacity=4))
        (seen, _) = ShardedBackend(backend, ranks).evaluate(requests(small_examples[:4], 0))
        return [math.isnan(loss) for loss in seen.losses]

    assert on_ranks(2, work) == [[True, True, False, False]] * 2


def test_ranks_that_drift_apart_stop_at_the_next_step(small_layout, small_examples):
    def work(ranks: Ranks) -> None:
        backend = ShardedBackend(opened(small_layout), ranks)
        commit(backend, 0, coefficient=0.5 + 1e-12 * ranks.rank)
        backend.evaluate(requests(small_examples[:4], 1))

    for error in on_ranks(2, work):
        assert isinstance(error, RankError) and "steps of rank 1 are not those of rank 0" in str(error)


def test_other_factors_or_other_weights_are_found(small_layout):
    def work(ranks: Ranks) -> None:
        backend = ShardedBackend(opened(small_layout), ranks)
        commit(backend, 0)
        if ranks.rank:
            backend.inner._bank.left_OC[0, 0] += 1e-7  # type: ignore[attr-defined]
        backend.check_factors()

    assert all(isinstance(error, RankError) and "factors" in str(error) for error in on_ranks(2, work))

    def other_base(ranks: Ranks) -> None:
        backend = ShardedBackend(opened(small_layout), ranks)
        backend.inner._base[0] += ranks.rank  # type: ignore[attr-defined]
        backend.digest()

    assert all(isinstance(error, RankError) and "base weights" in str(error) for error in on_ranks(2, other_base))


def test_a_loaded_rank_goes_on_with_the_others_and_another_state_is_refused(small_layout, small_examples):
    saved = opened(small_layout)
    commit(saved, 0)

    def work(ranks: Ranks, *, same: bool) -> Any:
        backend = ShardedBackend(opened(small_layout), ranks)
        if same or ranks.rank:
            backend.load(saved.snapshot())
        else:
            commit(backend, 0, coefficient=0.25)
        return plain(backend.evaluate(requests(small_examples[:4], 1))[0])

    expected = plain(saved.evaluate(requests(small_examples[:4], 1))[0])
    assert on_ranks(2, lambda ranks: work(ranks, same=True)) == [expected] * 2
    assert all(isinstance(error, RankError) for error in on_ranks(2, lambda ranks: work(ranks, same=False)))


def test_an_error_on_one_rank_ends_the_others_with_its_text(small_layout, small_examples):
    def work(ranks: Ranks) -> None:
        if ranks.rank:
            raise ConfigError("lower `bank.capacity`")
        ShardedBackend(opened(small_layout), ranks).evaluate(requests(small_examples[:4], 0))

    other, first = on_ranks(2, work)
    assert isinstance(first, ConfigError)
    assert isinstance(other, RankError) and str(other) == "rank 1 failed: lower `bank.capacity`"


def test_a_silent_rank_is_given_up():
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        first, _ = pool.map(lambda rank: Ranks(store, rank, 2, timedelta(seconds=2)), range(2))
        with pytest.raises(RankError, match="does not answer"):
            first.gather("barrier", None)


def test_a_rank_that_never_joins_is_given_up():
    with pytest.raises(RankError, match="rank 1 did not join"):
        Ranks(HashStore(), 0, 2, timedelta(seconds=1))


def test_ranks_at_different_places_say_so():
    errors = on_ranks(2, lambda ranks: ranks.gather(f"place {ranks.rank}", None))
    assert all("rank 0 at place 0, rank 1 at place 1" in str(error) for error in errors)


def test_every_rank_has_a_core():
    for cores, size in (((0, 1, 2, 3), 2), ((0, 1, 2), 2), ((4,), 3)):
        shares = [share_of_cores(cores, rank, size) for rank in range(size)]
        assert all(shares) and {core for share in shares for core in share} == set(cores)
