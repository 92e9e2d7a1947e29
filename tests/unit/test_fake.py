import math

import pytest
import torch

from zo_lightning.backends.fake import FakeBackend, target
from zo_lightning.core.types import BankSpec, DirectionKey, EvalRequest, Generate, Point, Score, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.errors import ConfigError, EngineError, StaleVersionError
from zo_lightning.updates import Sgd

DIRECTION = LowRank(rank=2, refresh_every=3)
KEY = DirectionKey(seed=1, step=0, stage=0)


@pytest.fixture
def backend(small_layout):
    backend = FakeBackend()
    backend.open(small_layout, DIRECTION, Sgd(lr=0.1), BankSpec(rank=2, capacity=4, policy="merge"))
    return backend


def ask(backend, examples, *terms, loss="gold"):
    point = Point(version=backend.version, terms=terms)
    (seen,) = backend.evaluate([EvalRequest(point=point, examples=examples, objective=Score(loss=loss))])
    return seen


def record(version, *terms):
    return StepRecord(step=version, version=version, lr=0.5, terms=terms)


def test_slope_along_a_direction_is_the_closed_form_gradients(backend, small_layout, small_examples):
    examples = small_examples[:5]
    direction = backend.theta(Point(version=0, terms=((KEY, 1.0),))) - backend.theta(Point(version=0))
    theta = backend.theta(Point(version=0))
    weights = torch.tensor([float(len(e.options[e.label])) for e in examples], dtype=torch.float64)
    pulls = torch.stack([(theta - target(e, e.label, 39)) / 39 for e in examples])
    gradient = (weights[:, None] * pulls).sum(0) / weights.sum()
    eps = 1e-2
    slope = (ask(backend, examples, (KEY, eps)).value - ask(backend, examples, (KEY, -eps)).value) / (2 * eps)
    assert slope == pytest.approx(float(gradient @ direction), rel=1e-6)


def test_an_examples_answer_does_not_depend_on_its_batch(backend, small_examples):
    whole = ask(backend, small_examples[:8], (KEY, 0.1))
    backward = ask(backend, small_examples[7::-1], (KEY, 0.1))
    alone = ask(backend, small_examples[5:6], (KEY, 0.1))
    assert whole.losses == backward.losses[::-1]
    assert whole.losses[5:6] == alone.losses and whole.scores[5:6] == alone.scores


def test_loss_and_accuracy_follow_theta_to_the_common_target(backend, small_examples):
    before = ask(backend, small_examples, loss="candidates")
    backend._base = [
        0.5 * part.reshape_as(base)
        for part, base in zip(
            target(small_examples[0], small_examples[0].label, 39).float().split([24, 15]), backend._base, strict=True
        )
    ]
    after = ask(backend, small_examples, loss="candidates")
    right = [scores[e.label] == max(scores) for scores, e in zip(after.scores, small_examples, strict=True)]
    assert after.value < before.value and sum(right) > 45


def test_versions_are_checked_and_commit_moves_theta(backend, small_examples):
    backend.commit(record(0, (KEY, 0.3)))
    assert backend.version == 1 and backend.theta(Point(version=1)).abs().sum() > 0
    with pytest.raises(StaleVersionError):
        backend.evaluate([EvalRequest(point=Point(version=0), examples=small_examples, objective=Score())])
    with pytest.raises(StaleVersionError):
        backend.commit(record(0, (KEY, 0.3)))


def test_digest_is_the_base_and_only_a_merge_changes_it(backend, small_examples):
    digest = backend.digest()
    assert digest.num_parameters == 39
    for version in range(4):
        key = DirectionKey(seed=1, step=version, stage=version // 3)
        backend.commit(record(version, (key, 0.3)))
    ask(backend, small_examples)
    assert backend.digest() == digest
    theta = backend.theta(Point(version=4))
    ask(backend, small_examples, (DirectionKey(seed=1, step=6, stage=2), 0.0))  # a third stage: two slots merge
    torch.testing.assert_close(backend.theta(Point(version=4)), theta)
    assert backend.digest() != digest


def test_snapshot_restores_every_bit(backend, small_layout):
    backend.commit(record(0, (KEY, 0.3)))
    other = FakeBackend()
    other.open(small_layout, DIRECTION, Sgd(lr=0.1), BankSpec(rank=2, capacity=4, policy="merge"))
    other.load(backend.snapshot())
    assert other.version == 1 and torch.equal(other.theta(Point(version=1)), backend.theta(Point(version=1)))


def test_close_is_idempotent_and_a_closed_backend_says_so(backend, small_examples):
    assert backend.is_open
    backend.close()
    backend.close()
    assert not backend.is_open
    with pytest.raises(EngineError, match="closed"):
        backend.snapshot()


def test_generation_is_refused(backend, small_examples):
    objective = Generate(max_tokens=1, scorer="x")
    with pytest.raises(ConfigError, match="backend=fake"):
        backend.evaluate([EvalRequest(point=Point(version=0), examples=small_examples, objective=objective)])


def test_losses_are_finite(backend, small_examples):
    assert all(map(math.isfinite, ask(backend, small_examples, loss="candidates").losses))
