"""On real vLLM a call is one engine iteration; limits too small for it split it, which changes no answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.backends import EPS, RANK, SEED, Opened, Row, directions, on_rows
from tests.lozo import Lozo, Step
from zo_lightning.backends.vllm import VllmBackend
from zo_lightning.core.types import BankSpec, Example, Workload
from zo_lightning.updates import Sgd

LOZO = Lozo(direction=directions(refresh_every=2), eps=EPS, lr=1e-3, seed=SEED)


@pytest.fixture
def place(subject: Opened) -> Iterator[Opened]:
    """Room for other engines: the shared one is closed for a while."""
    subject.backend.close()
    yield subject
    subject.open()


def passages(place: Opened) -> tuple[Example, ...]:
    """Options of one and of several tokens, behind short prompts and a passage of many blocks."""
    long = tuple(token for example in place.examples for token in example.prompt)
    return (*place.examples, *(Example(prompt=long, options=e.options, label=e.label) for e in place.examples[:2]))


@contextmanager
def engine(place: Opened, workloads: Sequence[Workload], **settings: Any) -> Iterator[tuple[VllmBackend, list[int]]]:
    """A backend sized for some workloads, and the tokens of each engine iteration from then on."""
    backend, iterations = VllmBackend(**settings), []
    bank = BankSpec(rank=RANK, capacity=8)
    backend.open(place.layout, LOZO.direction, Sgd(lr=1.0), bank, workloads)
    try:
        (runner,) = backend._llm.collective_rpc(lambda worker: worker.worker.model_runner)  # type: ignore[union-attr]
        execute = runner.execute_model

        def counted(scheduled: Any, *args: Any) -> Any:
            if scheduled.total_num_scheduled_tokens:
                iterations.append(scheduled.total_num_scheduled_tokens)
            return execute(scheduled, *args)

        runner.execute_model = counted
        yield backend, iterations
    finally:
        backend.close()


def losses(steps: Sequence[Step]) -> list[float]:
    return [loss for step in steps for loss in (step.plus, step.minus)]


@on_rows(Row("vllm"))
def test_a_step_is_one_iteration_and_split_ones_answer_the_same(place: Opened) -> None:
    """Three steps on all examples, with adapters, a stage's change, shared prefixes and passages of many chunks.

    All prompts enter in one iteration. Options of three tokens then take two more, of a few tokens each.
    """
    examples = passages(place)
    work = [Workload(examples=examples, batch_size=len(examples), num_points=2)]
    with engine(place, work) as (backend, whole):
        expected = losses(LOZO.run(backend, [examples] * 3))
    assert len(whole) == 3 * 3 and whole[::3] == [max(whole)] * 3 and max(whole[1::3]) < max(whole) / 20
    short = [example for example in examples if all(len(option) == 1 for option in example.options)]
    with engine(place, work) as (backend, whole_short):
        LOZO.run(backend, [short] * 3)
    assert len(short) > 1 and len(whole_short) == 3
    for limit in ({"max_num_batched_tokens": 40}, {"engine": {"max_num_seqs": 3}}):
        with engine(place, work, **limit) as (backend, split):
            assert losses(LOZO.run(backend, [examples] * 3)) == pytest.approx(expected, abs=1e-5)
        assert len(split) > 2 * len(whole)
    assert len(examples[-1].prompt) > 2 * 40 and max(split) <= max(whole)


@on_rows(Row("vllm"))
def test_the_smallest_cache_holds_one_passage_at_a_time(place: Opened) -> None:
    """Passages wait for each other's blocks; every answer stays."""
    examples = passages(place)
    work = [Workload(examples=examples, batch_size=len(examples), num_points=2)]
    with engine(place, work) as (backend, _):
        expected = losses(LOZO.run(backend, [examples]))
        blocks = backend._llm.llm_engine.vllm_config.cache_config.num_gpu_blocks  # type: ignore[union-attr]
        length = backend._llm.llm_engine.model_config.max_model_len  # type: ignore[union-attr]
    per_block = 32 * 2 * 3 * 2 * 32 * 4  # of tiny-llama: keys and values, 3 layers, 2 heads of 32 in float32
    smallest = (-(-length // 32) + 1) * per_block / 2**30
    with engine(place, work, kv_cache_gib=smallest) as (backend, split):
        assert losses(LOZO.run(backend, [examples])) == pytest.approx(expected, abs=1e-5)
        assert backend._llm.llm_engine.vllm_config.cache_config.num_gpu_blocks == -(-length // 32) + 1 < blocks  # type: ignore[union-attr]
    assert len(split) > 1
