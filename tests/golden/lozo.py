"""The golden trajectory of LoZO on tiny-llama: what makes it, writes it and reads it.

``python -m tests.golden.lozo`` in the project's root writes it anew; ``README.md`` here says when that is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from tests.backends import CAPACITY, EPS, RANK, SEED, Row, directions, oracle_of, prepared
from tests.examples import mixed_examples
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.types import BankSpec, Layout, Score, StepRecord, Term
from zo_lightning.estimators import Spsa
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

FILE = Path(__file__).with_name("lozo_tiny-llama_dense.txt")
STEPS, LR, BATCH_SIZE = 30, 1e-4, 6
DIRECTION = directions(refresh_every=5)  # six stages in four slots: the last two wrap
TITLE = (
    f"# LoZO on tiny-llama, backend dense: seed {SEED}, rank {RANK}, refresh_every 5, capacity {CAPACITY}, eps {EPS}, "
    f"lr {LR}, batches of {BATCH_SIZE}"
)


class Golden(NamedTuple):
    """Digests of the draws and of the last factors; loss and slope of every step."""

    draws: str
    bank: str
    steps: list[tuple[float, float]]


def records(slopes: Iterable[float]) -> Iterator[StepRecord]:
    """The records of a run with these slopes."""
    for step, slope in enumerate(slopes):
        (key,) = DIRECTION.keys(seed=SEED, step=step)
        yield StepRecord(step=step, version=step, lr=LR, terms=((key, slope),))


def draws_digest(layout: Layout) -> str:
    """Digest of both factors of every step, which no slope has touched."""
    digest = hashlib.sha256()
    for record in records([0.0] * STEPS):
        ((key, _),) = record.terms
        for factor in (DIRECTION.left, DIRECTION.right):
            digest.update(factor(key, layout, torch.device("cpu")).numpy().tobytes())
    return digest.hexdigest()


def bank_digest(layout: Layout, slopes: Iterable[float]) -> str:
    """Digest of the left factors after committing all records."""
    bank = LowRankBank(BankSpec(rank=RANK, capacity=CAPACITY), layout, DIRECTION, Sgd(lr=LR))
    for record in records(slopes):
        bank.commit(record)
    return hashlib.sha256(bank.left_OC.numpy().tobytes()).hexdigest()


def measure(slopes: Sequence[float] | None = None) -> list[tuple[float, float]]:
    """Loss and slope of every step on the dense backend, which moves by ``slopes``, or else by what it measures."""
    opened = oracle_of(Row("dense")).reset()
    examples = mixed_examples(prepared("tiny-llama").folder, 30, seed=2)
    found = []
    for step in range(STEPS):
        batch = [examples[(step * BATCH_SIZE + i) % len(examples)] for i in range(BATCH_SIZE)]
        keys = DIRECTION.keys(seed=SEED, step=step)
        requests = Antithetic(eps=EPS).plan(keys, batch, step, Score())
        estimate = Spsa().estimate(requests, opened.backend.evaluate(requests))
        ((key, slope),) = estimate.terms
        found.append((estimate.loss, slope))
        term: Term = (key, slopes[step] if slopes else slope)
        opened.backend.commit(StepRecord(step=step, version=step, lr=LR, terms=(term,)))
    return found


def read() -> Golden:
    """The file's contents."""
    rows = [line.split() for line in FILE.read_text().splitlines() if not line.startswith("#")]
    named, steps = dict(rows[:2]), rows[2:]
    assert [int(step) for step, *_ in steps] == list(range(STEPS))
    numbers = [(float.fromhex(loss), float.fromhex(slope)) for _, loss, slope in steps]
    return Golden(named["draws"], named["bank"], numbers)


def write() -> None:
    """Measure and write the file."""
    layout, steps = prepared("tiny-llama").layout, measure()
    lines = [TITLE, f"draws {draws_digest(layout)}", f"bank {bank_digest(layout, [c for _, c in steps])}"]
    lines += ["# step loss c", *(f"{i} {loss.hex()} {c.hex()}" for i, (loss, c) in enumerate(steps))]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write()
