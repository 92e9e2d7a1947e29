"""The policy ``merge``: completed pairs move into the base weights, and no answer shows when."""

from __future__ import annotations

import io

import pytest
import torch

from tests.backends import EPS, SEED, STAGES, Opened, Row, on_rows, oracle_of
from zo_lightning.core.types import DirectionKey
from zo_lightning.errors import ConfigError

MERGING = (
    Row("dense", policy="merge"),
    Row("packed", policy="merge"),
    Row("packed", "tiny-opt", policy="merge", trainable="all"),
    Row("vllm", policy="merge"),
)
TOLERANCE = 1e-5


def key_of(step: int) -> DirectionKey:
    """A stage of its own for every step: the bank is full after ``STAGES`` steps."""
    return DirectionKey(seed=SEED, step=step, stage=step)


def train(opened: Opened, steps: int) -> None:
    for step in range(opened.backend.version, opened.backend.version + steps):
        opened.commit((key_of(step), 1.0), lr=5e-3)


@on_rows(Row("fake", policy="merge"), *MERGING)
def test_a_fold_changes_the_base_and_no_answer(subject: Opened) -> None:
    """The centre is asked beside the probe whose new stage makes the bank fold: both must see one and the same base."""
    train(subject, STAGES)
    digest, before = subject.backend.digest(), subject.ask()
    new = key_of(STAGES)
    requests = [subject.request(), subject.request((new, EPS)), subject.request((new, -EPS))]
    centre, plus, minus = subject.backend.evaluate(requests)
    after = subject.backend.digest()
    assert after.hex != digest.hex and after.num_parameters == digest.num_parameters
    for seen in (centre, subject.ask()):
        assert seen.losses == pytest.approx(before.losses, abs=TOLERANCE)
    assert centre.value == pytest.approx((plus.value + minus.value) / 2, abs=1e-3)
    assert subject.backend.snapshot()["num_merged"] == 1 and len(subject.backend.snapshot()["slots"]) == 1


@on_rows(*MERGING)
def test_merged_weights_travel_with_the_snapshot(subject: Opened) -> None:
    """Through a file into another backend, two folds on both sides of it; an older snapshot is refused."""
    oracle = oracle_of(subject.row).reset()
    train(subject, STAGES - 1)
    unmerged = subject.backend.snapshot()
    train(subject, 3)
    file = io.BytesIO()
    torch.save(subject.backend.snapshot(), file)
    file.seek(0)
    oracle.backend.load(torch.load(file, weights_only=True))
    for opened in (subject, oracle):
        train(opened, STAGES)
        assert opened.backend.snapshot()["num_merged"] == 2
    probe = (key_of(oracle.backend.version - 1), EPS)
    for terms in ((), (probe,)):
        assert subject.ask(*terms).losses == pytest.approx(oracle.ask(*terms).losses, abs=TOLERANCE)
    with pytest.raises(ConfigError, match="opened anew"):
        subject.backend.load(unmerged)
