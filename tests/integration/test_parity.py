"""Joined training steps: a backend (real vLLM, the packed one), the dense one and a hand-written LoZO stay together.

Each of the three evaluates its own weights and applies its own projected gradients; only seeds and batches are shared.
The learning rate lets the loss fall by 0.1 to 0.4 nats in 60 steps, so weights really move. Three times that rate makes
rounding errors of 1e-7 grow a thousandfold by the last step: then one would have to force the slopes of one
trajectory on the others, which these runs do not need.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.backends import EPS, SEED, TINY, Opened, Row, directions, on_rows, oracle_of, prepared
from tests.examples import mixed_examples
from tests.lozo import Lozo, Reference, Step, noise
from zo_lightning.core.types import Example

BATCH_SIZE = 6
LOZO = Lozo(direction=directions(refresh_every=10), eps=EPS, lr=1e-4, seed=SEED)
MAX_LOSS_DIFFERENCE, MIN_PEARSON = 1e-4, 0.9999


def batches_of(examples: tuple[Example, ...], steps: int) -> list[tuple[Example, ...]]:
    """Consecutive examples, round and round: options of one and of several tokens in every batch."""
    places = [[(step * BATCH_SIZE + i) % len(examples) for i in range(BATCH_SIZE)] for step in range(steps)]
    return [tuple(examples[place] for place in batch) for batch in places]


def compare(name: str, one: Sequence[Step], other: Sequence[Step], noise: float) -> None:
    """Hold two trajectories together, and print how close they were."""
    slopes = torch.tensor([[step.slope for step in steps] for steps in (one, other)], dtype=torch.float64)
    losses = torch.tensor([[(step.plus, step.minus) for step in steps] for steps in (one, other)], dtype=torch.float64)
    clear = slopes.abs().amin(0) > noise
    same = slopes[0].sign() == slopes[1].sign()
    pearson = float(torch.corrcoef(slopes)[0, 1])
    difference = float((losses[0] - losses[1]).abs().max())
    print(
        f"{name}: {int(same[clear].sum())}/{int(clear.sum())} signs where |c| exceeds the noise {noise:.1e}"
        f" ({int(same.sum())}/{len(one)} of all), Pearson {pearson:.8f}, max |loss difference| {difference:.1e},"
        f" max |c difference| {float((slopes[0] - slopes[1]).abs().max()):.1e} at |c| {slopes.abs().median():.1f}"
    )
    assert [step.stage for step in one] == [step.stage for step in other]
    assert bool(same[clear].all()) and int(clear.sum()) > len(one) // 2
    assert pearson >= MIN_PEARSON
    assert difference < MAX_LOSS_DIFFERENCE


def hold_together(subject: Opened, steps: int) -> tuple[float, float]:
    """Run all three and compare each with each; the loss of the examples before and after."""
    model = subject.row.model
    examples = mixed_examples(prepared(model).folder, 64, seed=1)
    batches = batches_of(examples, steps)
    oracle = oracle_of(subject.row).reset()
    spread = max(noise(opened.backend, LOZO, batches[0]) for opened in (subject, oracle))
    before = subject.ask(examples=examples).value
    ours, on_dense = LOZO.run(subject.backend, batches), LOZO.run(oracle.backend, batches)
    by_hand = Reference(subject.layout, LOZO).run(batches)
    print()
    compare(f"{subject.row} and dense", ours, on_dense, spread)
    compare(f"{subject.row} and by hand", ours, by_hand, spread)
    compare(f"{model}, dense and by hand", on_dense, by_hand, spread)
    return before, subject.ask(examples=examples).value


@on_rows(
    *(Row("vllm", model) for model in TINY),
    Row("packed", "tiny-qwen3"),
    Row("packed", "tiny-opt", trainable="all"),
)
def test_sixty_joined_steps_on_tiny_models(subject: Opened) -> None:
    """Six stages of ten steps in a bank of four slots: the last two wrap."""
    before, after = hold_together(subject, 60)
    assert before - after > 0.1


@pytest.mark.slow
@on_rows(Row("vllm", "smollm2"))
def test_twelve_joined_steps_on_smollm2(subject: Opened) -> None:
    before, after = hold_together(subject, 12)
    assert abs(before - after) > 0.01
