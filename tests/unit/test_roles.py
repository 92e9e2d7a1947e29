"""The four roles of LoZO one by one: which keys, which points, which estimate, which step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from zo_lightning.core.types import DirectionKey, Estimate, EvalRequest, Example, Observation, Score
from zo_lightning.directions import LowRank
from zo_lightning.errors import ConfigError
from zo_lightning.estimators import Spsa
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

EPS = 1e-3
QUERY = Antithetic(eps=EPS)
KEYS = tuple(DirectionKey(seed=1, step=4, stage=0, index=index) for index in range(3))
EXAMPLES = tuple(Example(prompt=(i,), options=((1,), (2, 3)), label=i % 2) for i in range(7))


# --- direction


def test_keys_are_a_function_of_seed_and_step() -> None:
    direction = LowRank(rank=2, refresh_every=50)
    keys = [direction.keys(seed=7, step=step) for step in range(120)]
    assert keys == [direction.keys(seed=7, step=step) for step in range(120)]
    assert [key.stage for (key,) in keys] == [0] * 50 + [1] * 50 + [2] * 20
    assert [key.step for (key,) in keys] == list(range(120))


def test_stages_come_round_after_a_cycle() -> None:
    direction = LowRank(rank=2, refresh_every=3, cycle=4)
    stages = [direction.keys(seed=7, step=step)[0].stage for step in range(0, 36, 3)]
    assert stages == [0, 1, 2, 3] * 3


def test_only_released_changes_the_applied_key_and_only_on_refresh_steps() -> None:
    paper = LowRank(rank=2, refresh_every=3)
    released = LowRank(rank=2, refresh_every=3, refresh_update="released")
    for step in range(12):
        (key,) = paper.keys(seed=7, step=step)
        assert paper.applied_key(key) == key
        assert (released.applied_key(key) == key) == (step % 3 != 0)
        assert released.applied_key(key).stage == key.stage


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("direction.rank", {"rank": 0}),
        ("direction.refresh_every", {"refresh_every": 0}),
        ("direction.scale", {"scale": "r"}),
        ("direction.refresh_update", {"refresh_update": "both"}),
    ],
)
def test_settings_of_a_direction_are_checked(key: str, settings: dict) -> None:
    with pytest.raises(ConfigError, match=f"`{key}`"):
        LowRank(**({"rank": 2, "refresh_every": 3} | settings))


# --- query


def test_every_key_is_asked_on_both_sides_with_the_same_examples() -> None:
    requests = QUERY.plan(KEYS, EXAMPLES, 9, Score(loss="gold"))
    assert [request.point.terms for request in requests] == [((key, a),) for key in KEYS for a in (EPS, -EPS)]
    assert all(request.examples == EXAMPLES and request.point.version == 9 for request in requests)
    assert all(request.objective == Score(loss="gold") for request in requests)
    assert QUERY.follow(requests, ()) == ()


@pytest.mark.parametrize("eps", [0.0, -1e-3, math.inf, math.nan])
def test_eps_must_be_a_positive_number(eps: float) -> None:
    with pytest.raises(ConfigError, match=r"`query\.eps`"):
        Antithetic(eps=eps)


# --- estimator


def answer(requests: Sequence[EvalRequest], loss: Score) -> list[Observation]:
    """Losses that depend on example and point; weights as the objective has them."""
    seen = []
    for request in requests:
        ((key, coefficient),) = request.point.terms
        slope = 100.0 + 17.0 * key.index
        losses = tuple(0.5 + 0.1 * e.prompt[0] ** 2 + coefficient * slope * (1 + e.prompt[0]) for e in request.examples)
        weights = tuple(float(len(e.options[e.label])) if loss.loss == "gold" else 1.0 for e in request.examples)
        seen.append(Observation(losses=losses, weights=weights))
    return seen


def over(parts: Sequence[tuple[Example, ...]], loss: Score, keys: tuple[DirectionKey, ...] = KEYS) -> Estimate:
    """The estimate of a window whose micro-batches are ``parts``."""
    requests = [request for part in parts for request in QUERY.plan(keys, part, 9, loss)]
    return Spsa().estimate(requests, answer(requests, loss))


@pytest.mark.parametrize("loss", [Score(), Score(loss="gold")], ids=lambda score: score.loss)
@pytest.mark.parametrize("cuts", [(4,), (1, 2), (6,), (3, 5)])
def test_micro_batches_of_any_size_pool_to_the_whole_batch(loss: Score, cuts: tuple[int, ...]) -> None:
    """A ragged window is not the average of its parts' estimates: weights decide."""
    ends = (0, *cuts, len(EXAMPLES))
    whole = over([EXAMPLES], loss)
    parts = over([EXAMPLES[a:b] for a, b in pairwise(ends)], loss)
    assert [key for key, _ in parts.terms] == list(KEYS)
    assert [c for _, c in parts.terms] == pytest.approx([c for _, c in whole.terms], rel=1e-12)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-14)


@pytest.mark.parametrize("loss", [Score(), Score(loss="gold")], ids=lambda score: score.loss)
def test_the_coefficient_is_the_weighted_slope_over_the_number_of_directions(loss: Score) -> None:
    weights = [len(e.options[e.label]) if loss.loss == "gold" else 1 for e in EXAMPLES]
    mean = sum(w * (1 + e.prompt[0]) for w, e in zip(weights, EXAMPLES, strict=True)) / sum(weights)
    centre = sum(w * (0.5 + 0.1 * e.prompt[0] ** 2) for w, e in zip(weights, EXAMPLES, strict=True)) / sum(weights)
    estimate = over([EXAMPLES], loss)
    assert [c for _, c in estimate.terms] == pytest.approx([(100 + 17 * i) * mean / 3 for i in range(3)])
    assert estimate.loss == pytest.approx(centre)


def test_a_loss_that_is_not_finite_makes_the_estimate_so() -> None:
    requests = QUERY.plan(KEYS[:1], EXAMPLES[:2], 9, Score())
    for bad in (math.nan, math.inf):
        seen = [Observation(losses=(0.5, bad), weights=(1.0, 1.0)), Observation(losses=(0.5, 0.4), weights=(1.0, 1.0))]
        assert not Spsa().estimate(requests, seen).is_finite
    assert over([EXAMPLES], Score()).is_finite


# --- update


def test_sgd_descends_along_every_term() -> None:
    left = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
    U, W = torch.tensor([[1.0, 0.0], [2.0, -1.0]]), torch.ones(2, 2)
    moved, state = Sgd(lr=9.0).apply(left, [(2.0, U), (-1.0, W)], 0.25, {})
    torch.testing.assert_close(moved, left - 0.25 * (2.0 * U - W))
    assert state == {} and Sgd(lr=1.0).init(left) == {}


def test_sgd_leaves_what_it_is_given() -> None:
    left = torch.zeros(2, 2)
    Sgd(lr=1.0).apply(left, [(1.0, torch.ones(2, 2))], 1.0, {})
    assert torch.equal(left, torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("update.lr", {"lr": -1.0}),
        ("update.lr", {"lr": math.nan}),
        ("update.weight_decay", {"lr": 1.0, "weight_decay": 0.1}),
    ],
)
def test_settings_of_sgd_are_checked(key: str, settings: dict) -> None:
    with pytest.raises(ConfigError, match=f"`{key}`"):
        Sgd(**settings)
