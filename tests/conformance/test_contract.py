"""One contract for all backends: every test here runs on every row of the table, and a new backend adds a row."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.backends import CAPACITY, EPS, RANK, TINY, Opened, Row, key_of, on_rows, oracle_of
from zo_lightning.core.types import Generate, Observation, Score, StepRecord
from zo_lightning.errors import ConfigError, EngineError, StaleVersionError

ROWS = (
    Row("fake"),
    *(Row("dense", model) for model in TINY),
    Row("dense", "tiny-opt", trainable="all"),
    *(Row("packed", model) for model in TINY),
    *(Row("packed", model, trainable="all") for model in TINY),
    *(Row("vllm", model) for model in TINY),
    Row("vllm", process="child"),
)
TOLERANCE = {"fake": 1e-12, "dense": 1e-5, "packed": 1e-5, "vllm": 1e-5}  # nats; a logit of 8 has steps of 1e-6

pytestmark = on_rows(*ROWS)


@pytest.fixture
def oracle(subject: Opened) -> Opened:
    """Another backend of the same model, at the version of the one under test."""
    return oracle_of(subject.row).reset()


def assert_close(subject: Opened, seen: Observation, expected: Observation) -> None:
    tolerance = TOLERANCE[subject.row.backend]
    assert seen.losses == pytest.approx(expected.losses, abs=tolerance)
    assert seen.weights == expected.weights
    assert len(seen.scores) == len(expected.scores)
    for mine, theirs in zip(seen.scores, expected.scores, strict=True):
        assert mine == pytest.approx(theirs, abs=tolerance)


def through_a_file(snapshot: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(snapshot, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# --- answers


@pytest.mark.parametrize("objective", [Score(), Score(loss="gold")], ids=lambda score: score.loss)
@pytest.mark.parametrize("steps", [0, 7], ids=["at the base", "after seven steps"])
def test_observations_are_the_oracles(subject: Opened, oracle: Opened, objective: Score, steps: int) -> None:
    """Centre, both probes, terms that share a stage and terms that do not; options of every form."""
    for opened in (subject, oracle):
        opened.train(steps)
    key, twin, other = key_of(steps), key_of(steps, index=1), key_of(max(0, steps - 3))
    points = [(), ((key, EPS),), ((key, -EPS),), ((key, 0.01), (twin, -0.02)), ((key, 0.01), (other, 0.02))]
    for terms in points:
        seen = subject.ask(*terms, objective=objective)
        assert_close(subject, seen, oracle.ask(*terms, objective=objective))
        assert seen.tokens > 0 and seen.seconds > 0
    assert subject.ask((key, 0.02)).value != pytest.approx(subject.ask().value, abs=1e-4)


def test_an_example_is_scored_the_same_alone_and_in_any_company(subject: Opened) -> None:
    term = (key_of(0), 0.02)
    together = subject.ask(term)
    backwards = subject.ask(term, examples=subject.examples[::-1])
    tolerance = TOLERANCE[subject.row.backend]
    assert backwards.losses[::-1] == pytest.approx(together.losses, abs=tolerance)
    for i, example in enumerate(subject.examples):
        assert subject.ask(term, examples=[example]).losses == pytest.approx(together.losses[i : i + 1], abs=tolerance)


def test_answers_come_in_the_order_of_the_requests(subject: Opened) -> None:
    """Five points, more than ``max_points`` of a row, several requests of some, shuffled among each other."""
    subject.train(2)
    points = [(), *(((key_of(2), a),) for a in (0.02, -0.02, 0.04)), ((key_of(2, index=1), 0.02),)]
    asked = [
        subject.request(*terms, examples=subject.examples[start : start + 1 + start % 3], objective=Score(loss=loss))
        for terms in points
        for start, loss in ((0, "candidates"), (3, "gold"), (7, "candidates"))
    ]
    random.Random(0).shuffle(asked)
    answers = subject.backend.evaluate(asked)
    assert len({round(answer.value, 4) for answer in answers}) > 10  # a mix-up would show
    for request, answer in zip(asked, answers, strict=True):
        (alone,) = subject.backend.evaluate([request])
        assert_close(subject, answer, alone)


def test_the_same_request_twice_gets_the_same_answer_twice(subject: Opened) -> None:
    request = subject.request((key_of(0), EPS))
    first, second = subject.backend.evaluate([request, request])
    assert_close(subject, first, second)


def test_nothing_asked_is_nothing_answered(subject: Opened) -> None:
    assert subject.backend.evaluate([]) == ()


def test_generation_is_refused_where_there_is_none(subject: Opened) -> None:
    with pytest.raises(ConfigError, match=f"backend={subject.row.backend}.*objective"):
        subject.ask(objective=Generate(max_tokens=1, scorer="any"))


# --- versions


def test_stale_requests_are_refused_and_the_current_ones_still_work(subject: Opened) -> None:
    subject.train(1)
    good = subject.request()
    for version in (0, 2):
        bad = replace(good, point=replace(good.point, version=version))
        with pytest.raises(StaleVersionError, match=f"version {version} .* version 1"):
            subject.backend.evaluate([good, bad])
    assert len(subject.backend.evaluate([good])) == 1


def test_commit_counts_versions_and_refuses_any_but_the_next(subject: Opened) -> None:
    assert subject.backend.version == 0
    subject.train(1)
    assert subject.backend.version == 1
    before = subject.backend.snapshot()
    for version in (0, 2):
        with pytest.raises(StaleVersionError, match=f"version {version}.* 1"):
            subject.backend.commit(StepRecord(step=1, version=version, lr=1.0, terms=((key_of(1), 1.0),)))
    assert subject.backend.version == 1 and torch.equal(subject.backend.snapshot()["left"], before["left"])


def test_a_skipped_step_advances_the_version_alone(subject: Opened) -> None:
    subject.train(2)
    before = subject.ask()
    subject.backend.commit(StepRecord(step=2, version=2, lr=1.0, terms=(), skipped=True))
    assert subject.backend.version == 3
    assert_close(subject, subject.ask(), before)


def test_the_centre_moves_with_every_commit(subject: Opened, oracle: Opened) -> None:
    """A prefix cached under a key that forgets what changed would answer with the old centre, or an old probe."""
    seen = []
    for step in range(4):
        at_once = subject.ask()  # nothing was asked since the commit
        subject.backend.evaluate([subject.request((key_of(step), a)) for a in (EPS, -EPS)])
        oracle.backend.load(subject.backend.snapshot())
        for centre in (at_once, subject.ask()):
            assert_close(subject, centre, oracle.ask())
        seen.append(at_once.value)
        subject.commit((key_of(step), 1.0), lr=0.02)
    differences = [abs(a - b) for i, a in enumerate(seen) for b in seen[:i]]
    assert min(differences) > 100 * TOLERANCE[subject.row.backend]


# --- snapshots


def test_snapshots_are_interchangeable_and_exact(subject: Opened, oracle: Opened) -> None:
    """Both ways through a file: the same bits come out, and both go on to the same bits."""
    subject.train(5)
    oracle.backend.load(through_a_file(subject.backend.snapshot()))
    assert oracle.backend.version == 5
    assert_close(subject, subject.ask(), oracle.ask())
    oracle.train(9)
    subject.train(9)
    ours, theirs = subject.backend.snapshot(), oracle.backend.snapshot()
    assert torch.equal(ours.pop("left"), theirs.pop("left"))
    assert ours == theirs
    subject.reset().backend.load(through_a_file(oracle.backend.snapshot()))
    assert_close(subject, subject.ask((key_of(14), EPS)), oracle.ask((key_of(14), EPS)))


@pytest.mark.parametrize("steps", [0, 4], ids=["to the base", "to four steps"])
def test_loading_an_older_snapshot_goes_back_and_forth(subject: Opened, steps: int) -> None:
    subject.train(steps)
    older, expected, probed = subject.backend.snapshot(), subject.ask(), subject.ask((key_of(steps), EPS))
    subject.train(9)
    newer, learned = subject.backend.snapshot(), subject.ask()
    subject.backend.load(older)
    assert subject.backend.version == steps
    assert_close(subject, subject.ask(), expected)
    subject.backend.load(newer)
    assert_close(subject, subject.ask(), learned)
    subject.backend.load(older)
    assert_close(subject, subject.ask((key_of(steps), EPS)), probed)


def test_a_snapshot_that_does_not_fit_is_refused(subject: Opened) -> None:
    subject.train(1)
    snapshot = subject.backend.snapshot()
    with pytest.raises(ConfigError, match=r"`direction\.rank`"):
        subject.backend.load(snapshot | {"rank": RANK + 1})
    assert subject.backend.version == 1 and torch.equal(subject.backend.snapshot()["left"], snapshot["left"])


# --- the base


def test_the_base_keeps_every_bit_through_twelve_wraps(subject: Opened) -> None:
    """A bank of rank 8 at rank 2, refreshed every step: 48 steps go round its four slots twelve times."""
    digest = subject.backend.digest()
    for step in range(48):
        key = key_of(step, refresh_every=1)
        subject.backend.evaluate([subject.request((key, a), examples=subject.examples[:2]) for a in (EPS, -EPS)])
        subject.commit((key, 0.5))
    snapshot = subject.backend.snapshot()
    assert snapshot["left"].shape == (subject.layout.num_rows, CAPACITY)
    assert [stage for _, stage in snapshot["slots"]] == [0, 1, 2, 3]
    assert subject.backend.digest() == digest
    assert digest.num_parameters == subject.layout.num_parameters


# --- the end


def test_close_is_idempotent_and_a_closed_backend_says_so(subject: Opened) -> None:
    request = subject.request()
    before = subject.ask()
    assert subject.backend.is_open
    try:
        subject.backend.close()
        subject.backend.close()
        assert not subject.backend.is_open
        record = StepRecord(step=0, version=0, lr=1.0, terms=())
        for use in (
            lambda: subject.backend.evaluate([request]),
            lambda: subject.backend.commit(record),
            subject.backend.snapshot,
        ):
            with pytest.raises(EngineError, match="open"):
                use()
    finally:
        subject.open()
    assert subject.backend.version == 0
    assert_close(subject, subject.ask(), before)
