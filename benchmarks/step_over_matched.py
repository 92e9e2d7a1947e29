"""What a zeroth-order step costs over matched inference: the same requests with no adapter, no update.

    python benchmarks/step_over_matched.py [--steps 20] [--rank 2] [--data-dir ../shared/data]

Both sides run in one process, interleaved, on the same batches; medians and a bootstrap interval of
the ratio. Without ``--data-dir`` the batches are the built-in task's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

from zo_lightning.backends.vllm import VllmBackend
from zo_lightning.core import rng
from zo_lightning.core.types import BankSpec, Example, Score, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.estimators import Spsa
from zo_lightning.models import load_tokenizer, prepare_model
from zo_lightning.queries import Antithetic
from zo_lightning.tasks import SentimentTask, TextTask
from zo_lightning.updates import Sgd

BATCH = 16
WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--data-dir")
    options = parser.parse_args()

    model = prepare_model(name="smollm2-135m", path=None, source="smollm2", max_length=2048)
    examples = load_examples(options.data_dir, model)
    direction = LowRank(rank=options.rank, refresh_every=50)
    backend = VllmBackend(max_length=model.max_length)
    backend.open(model.layout, direction, Sgd(lr=1e-5), BankSpec(rank=options.rank, capacity=2 * options.rank))
    try:
        step, matched = measure(backend, direction, examples, options.steps)
    finally:
        backend.close()
    low, high = bootstrap_ratio(step, matched)
    ratio = statistics.median(step) / statistics.median(matched)
    print(f"step {statistics.median(step):.3f} s, matched inference {statistics.median(matched):.3f} s")
    print(json.dumps({"step_over_matched": ratio, "low": low, "high": high, "steps": options.steps}))


def load_examples(data_dir: str | None, model) -> tuple[Example, ...]:
    tokenizer = load_tokenizer(model.folder)
    if data_dir is None:
        return SentimentTask().texts().encode(tokenizer, max_length=model.max_length).train
    task = TextTask(
        name="sst2",
        template="{{ sentence | trim }} It was",
        verbalisers={0: " terrible", 1: " great"},
        data_dir=data_dir,
    )
    return task.texts().encode(tokenizer, max_length=model.max_length).train


def measure(backend, direction, examples, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of every step and of its matched inference, in turn."""
    query, estimator = Antithetic(eps=1e-3), Spsa()
    order = rng.permutation(0, len(examples), epoch=0)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(WARM_UP + steps):
        batch = tuple(examples[i] for i in order[number * BATCH % len(order) :][:BATCH])

        def train(number: int = number, batch: tuple[Example, ...] = batch) -> None:
            requests = query.plan(direction.keys(seed=0, step=number), batch, backend.version, Score())
            estimate = estimator.estimate(requests, backend.evaluate(requests))
            record = StepRecord(step=number, version=backend.version, lr=1e-5, terms=estimate.terms)
            backend.commit(record)

        both = [seconds(train), seconds(lambda batch=batch: backend.infer(batch, batch))]
        if number >= WARM_UP:
            for series, value in zip(times, both, strict=True):
                series.append(value)
    return times


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def bootstrap_ratio(step: list[float], matched: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % interval of the ratio of medians."""
    random_draws, pairs = random.Random(0), list(zip(step, matched, strict=True))
    ratios = []
    for _ in range(draws):
        sample = random_draws.choices(pairs, k=len(pairs))
        ratios.append(statistics.median(a for a, _ in sample) / statistics.median(b for _, b in sample))
    ratios.sort()
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


if __name__ == "__main__":
    main()
