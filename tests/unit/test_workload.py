"""Engine limits from the work at hand: arithmetic, and what is refused before an engine starts."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch

from tests.backends import RANK, directions, prepared
from zo_lightning.backends.vllm import VllmBackend
from zo_lightning.backends.vllm.fit import Costs, Demand, Wanted, costs_of, demand_of, fit
from zo_lightning.backends.vllm.scoring import trie_walks
from zo_lightning.core.types import BankSpec, Example, Workload
from zo_lightning.errors import ConfigError
from zo_lightning.models.layout import load_config
from zo_lightning.updates import Sgd

COSTS = Costs(kv=1000, activations=800, logits=10_000)
WANTED = Wanted(block_size=32)
DEMAND = Demand(requests=40, tokens=2000, longest=90)
PLENTY = 2**30


def examples_of(lengths: list[int], options: tuple[tuple[int, ...], ...] = ((1,), (2,))) -> tuple[Example, ...]:
    return tuple(Example(prompt=(7,) * length, options=options, label=0) for length in lengths)


def test_no_batch_asks_more_than_the_demand() -> None:
    """Every batch of three out of six, at two points, beside one large batch at one."""
    draw = random.Random(0)
    options = ((1, 2, 3), (1, 2, 4), (5,), (6, 7))
    examples = tuple(
        replace(example, options=options[: draw.randrange(2, 5)])
        for example in examples_of([draw.randrange(5, 30) for _ in range(6)], options)
    )
    train = Workload(examples=examples, batch_size=3, num_points=2)
    small = Workload(examples=examples[:1], batch_size=64)
    demand = demand_of([train, small], block_size=32)
    batches = [
        [walk for example in batch for walk in trie_walks(example)] for batch in itertools.combinations(examples, 3)
    ]
    lengths = [[len(walk.prompt) + len(walk.forced) for walk in walks] for walks in batches]
    assert demand.requests == 2 * max(map(len, lengths))
    assert demand.tokens == 2 * max(map(sum, lengths))
    assert demand.longest == 1 + max(map(max, lengths))
    assert demand.forced == 2


def test_a_batch_larger_than_the_data_asks_all_of_them() -> None:
    work = Workload(examples=examples_of([4, 9]), batch_size=64, num_points=2)
    assert demand_of([work], block_size=32) == Demand(requests=4, tokens=26, longest=10)


def test_full_blocks_of_a_shared_prompt_count_once() -> None:
    work = Workload(examples=examples_of([70], options=((1, 2), (3, 4))), batch_size=1)
    assert demand_of([work], block_size=32).tokens == 71 + (72 - 1 - 64)


def test_with_memory_a_call_is_one_iteration_and_the_cache_holds_it() -> None:
    limits = fit(DEMAND, COSTS, WANTED, free=PLENTY, context=4096)
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_model_len) == (2000, 40, 96)
    assert limits.iterations == 1
    # Each of the 40 requests of 50 tokens takes two blocks.
    assert limits.kv_cache_memory_bytes >= 40 * 2 * 32 * COSTS.kv


def test_less_memory_means_more_iterations_and_a_smaller_cache() -> None:
    need = 10 * 2**20
    limits = [fit(DEMAND, COSTS, WANTED, free=free, context=4096) for free in (PLENTY, need, need // 3)]
    assert limits[0].iterations == 1 < limits[1].iterations < limits[2].iterations
    assert limits[0].kv_cache_memory_bytes > limits[1].kv_cache_memory_bytes > limits[2].kv_cache_memory_bytes
    assert all("half of the free memory" in some.reason for some in limits[1:])


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("max_num_batched_tokens", 500, "`backend.max_num_batched_tokens`=500"),
        ("max_num_seqs", 10, "`backend.engine.max_num_seqs`=10"),
        ("kv_cache_gib", 5e-4, "`backend.kv_cache_gib`=0.0005"),
    ],
)
def test_a_set_value_wins_and_is_named_as_the_reason(key: str, value: float, named: str) -> None:
    limits = fit(DEMAND, COSTS, replace(WANTED, **{key: value}), free=PLENTY, context=4096)
    assert limits.iterations >= 4
    assert limits.reason == named


def test_a_set_context_wins_and_the_cache_holds_it() -> None:
    limits = fit(DEMAND, COSTS, replace(WANTED, max_length=8192), free=PLENTY, context=8192)
    assert limits.max_model_len == 8192
    assert limits.kv_cache_memory_bytes > 8192 * COSTS.kv


@pytest.mark.parametrize(
    ("changes", "free", "named"),
    [
        ({"max_length": 80}, PLENTY, r"90 tokens.*context of 80.*`model\.max_length`"),
        ({}, 50_000, r"96 tokens.*`backend\.kv_cache_gib`=null"),
        ({"kv_cache_gib": 1e-4}, PLENTY, r"96 tokens.*`backend\.kv_cache_gib`=0\.0001"),
    ],
)
def test_a_sequence_that_does_not_fit_is_refused(changes: dict[str, float], free: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        fit(DEMAND, COSTS, replace(WANTED, **changes), free=free, context=4096)  # type: ignore[arg-type]


def test_costs_come_from_the_config() -> None:
    """Three layers of 4 heads with 32 dimensions, 2 of them for keys and values."""
    model = prepared("tiny-llama")
    config = load_config(model.folder)
    heads, dim = config.num_key_value_heads, config.head_dim
    whole, shard = (costs_of(config, model.layout, torch.float32, workers) for workers in (1, 2))
    assert whole.kv == 2 * config.num_hidden_layers * heads * dim * 4
    assert shard.kv == whole.kv // heads * -(-heads // 2)
    assert costs_of(config, model.layout, torch.bfloat16).kv == whole.kv // 2


def test_what_cannot_fit_is_refused_before_an_engine_starts() -> None:
    model = prepared("tiny-llama")
    work = Workload(examples=examples_of([300]), batch_size=1)
    settings = (model.layout, directions(refresh_every=3), Sgd(lr=1.0), BankSpec(rank=RANK, capacity=8), [work])
    for backend in (VllmBackend(max_length=256), VllmBackend(kv_cache_gib=1e-5)):
        with pytest.raises(ConfigError, match=r"model\.max_length"):
            backend.open(*settings)
        assert not backend.is_open
