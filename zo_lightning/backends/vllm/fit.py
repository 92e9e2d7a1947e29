"""Engine limits from the work at hand: one call of ``evaluate`` should be one engine iteration.

vLLM sizes buffers, key-value cache and, on GPU, its profiling run by these limits. Too small ones split a call over
several iterations, which changes no result and costs time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from zo_lightning.backends.vllm.scoring import requests_of
from zo_lightning.core.types import Example, Layout, Workload
from zo_lightning.errors import ConfigError
from zo_lightning.models.layout import load_config

log = logging.getLogger(__name__)

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The most that one call asks.

    ``requests``, ``tokens`` to compute, the ``longest`` sequence with its next token, and how many tokens of an option
    are ``forced`` one after another, each in an iteration of its own.
    """

    requests: int
    tokens: int
    longest: int
    forced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Bytes in each worker: of a token's keys and values, of its activations, and of a request's logits."""

    kv: int
    activations: int
    logits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the engine is started with; the user's own values where they were set.

    ``iterations`` is how many of them the largest call takes at least, ``reason`` why it is not one.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    kv_cache_memory_bytes: int | None
    iterations: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The user's own limits; None where they are to be chosen."""

    block_size: int
    max_length: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    kv_cache_gib: float | None = None


def demand_of(workloads: Sequence[Workload], block_size: int) -> Demand:
    """The largest call of some workloads, whichever examples meet in a batch.

    Of an example's requests only the first computes the whole prompt: the others find its full blocks cached.

    Examples:
        >>> short, long = (Example(prompt=(7,) * n, options=((1, 2), (3,)), label=0) for n in (5, 40))
        >>> demand_of([Workload(examples=(short, long, short), batch_size=2, num_points=2)], block_size=32)
        Demand(requests=4, tokens=94, longest=42, forced=1)
    """
    sizes = [[_size(example, block_size) for example in workload.examples] for workload in workloads]
    calls = list(zip(workloads, sizes, strict=True))

    def most(column: int) -> int:
        return max(
            work.num_points * sum(sorted((size[column] for size in of_work), reverse=True)[: work.batch_size])
            for work, of_work in calls
        )

    longest, forced = (max(size[column] for of_work in sizes for size in of_work) for column in (2, 3))
    return Demand(requests=most(0), tokens=most(1), longest=longest, forced=forced)


def _size(example: Example, block_size: int) -> tuple[int, int, int, int]:
    walks = requests_of(example)
    lengths = [len(walk.prompt) + len(walk.forced) for walk in walks]
    cached = len(example.prompt) // block_size * block_size
    forced = max(len(walk.forced) for walk in walks)
    return len(walks), sum(lengths) - cached * (len(walks) - 1), max(lengths) + 1, forced


def costs_of(config: Any, layout: Layout, dtype: torch.dtype, num_workers: int = 1) -> Costs:
    """Costs of a Hugging Face model.

    A token's activations are at most what all linears of one layer read and write. A request's logits are there three
    times in float32: as they are, as log-probabilities, and compared.
    """
    heads = config.num_attention_heads
    kv_heads = -(-(getattr(config, "num_key_value_heads", None) or heads) // num_workers)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = config.num_hidden_layers
    return Costs(
        kv=2 * layers * kv_heads * head_dim * dtype.itemsize,
        activations=(layout.num_rows + layout.num_cols) // layers * dtype.itemsize,
        logits=3 * 4 * config.vocab_size,
    )


def fit(demand: Demand, costs: Costs, wanted: Wanted, *, free: int, context: int) -> Limits:
    """The limits under which a call is one iteration, or as few as half of the free memory allows.

    The other half is for what is not counted here: adapters, the allocator's gaps, the trainer.

    Args:
        demand: the largest call.
        costs: of the model.
        wanted: what the user has set, which wins.
        free: bytes that are left once the weights are loaded.
        context: tokens that the model itself can take.

    Raises:
        ConfigError: if not even one sequence fits.

    Examples:
        >>> costs, wanted = Costs(kv=100, activations=80, logits=1000), Wanted(block_size=32)
        >>> demand = Demand(requests=8, tokens=400, longest=60)
        >>> limits = fit(demand, costs, wanted, free=10**6, context=512)
        >>> limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_model_len, limits.iterations
        (400, 8, 64, 1)
        >>> limits = fit(demand, costs, wanted, free=10**5, context=512)
        >>> limits.max_num_batched_tokens, limits.iterations, limits.reason
        (186, 3, 'half of the free memory, 0.0 GiB')
    """
    length = _length(demand, wanted, context)
    per_block = wanted.block_size * costs.kv
    need = _blocks(demand, wanted) * per_block + demand.tokens * costs.activations + demand.requests * costs.logits
    share = min(1.0, free / 2 / need)
    seqs = max(int(demand.requests * share), 1) if wanted.max_num_seqs is None else wanted.max_num_seqs
    tokens = wanted.max_num_batched_tokens
    if tokens is None:
        tokens = max(int(demand.tokens * share), wanted.block_size, wanted.max_num_seqs or 1)
    seqs = min(seqs, tokens)
    one = -(-length // wanted.block_size) + 1  # blocks of one sequence, and the engine's own empty one
    # A split call holds half-done passages: one at most, since the engine goes on with them first.
    held = Demand(requests=seqs, tokens=min(tokens + length, demand.tokens), longest=length)
    blocks = max(_blocks(held, wanted), one)
    if wanted.kv_cache_gib is not None:
        blocks = int(wanted.kv_cache_gib * _GIB / per_block)
    if blocks < one or one * per_block > free:
        asked = "null" if wanted.kv_cache_gib is None else wanted.kv_cache_gib
        raise ConfigError(
            f"one sequence of {length} tokens needs {one * per_block / _GIB:.2g} GiB of key-value cache, with "
            f"`backend.kv_cache_gib`={asked} and {free / _GIB:.2g} GiB of memory free: set it to null, or lower "
            "`model.max_length`"
        )
    memory = f"half of the free memory, {free / _GIB:.1f} GiB"
    iterations, reason = max(
        (demand.tokens / tokens, _because("max_num_batched_tokens", wanted.max_num_batched_tokens) or memory),
        (demand.requests / seqs, _because("engine.max_num_seqs", wanted.max_num_seqs) or memory),
        (_blocks(demand, wanted) / blocks, _because("kv_cache_gib", wanted.kv_cache_gib) or memory),
    )
    return Limits(
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        max_model_len=length,
        kv_cache_memory_bytes=blocks * per_block,
        iterations=math.ceil(iterations),
        reason=reason,
    )


def _blocks(demand: Demand, wanted: Wanted) -> int:
    """Blocks that hold a call: each request's last one may be half empty, and the engine keeps one empty."""
    return demand.tokens // wanted.block_size + demand.requests + 1


def _because(key: str, value: float | None) -> str | None:
    return None if value is None else f"`backend.{key}`={value}"


def fit_engine(
    layout: Layout,
    workloads: Sequence[Workload],
    wanted: Wanted,
    dtype: torch.dtype,
    num_workers: int,
    copies: int,
    utilization: float,
) -> Limits:
    """``fit`` on this machine, said in the log; without workloads for calls of up to 256 requests.

    Args:
        layout: the model.
        workloads: calls to come.
        wanted: what the user has set.
        dtype: of the base.
        num_workers: that share the model.
        copies: further ones of the linears in memory.
        utilization: share of the GPU's memory that the engine may take.
    """
    config = load_config(Path(layout.model))
    context = config.max_position_embeddings
    demand = Demand(requests=256, tokens=8192, longest=wanted.max_length or context)
    if workloads:
        demand = demand_of(workloads, wanted.block_size)
    free = free_bytes(layout, dtype, copies, utilization)
    limits = fit(demand, costs_of(config, layout, dtype, num_workers), wanted, free=free, context=context)
    if torch.cuda.is_available() and wanted.kv_cache_gib is None:
        limits = replace(limits, kv_cache_memory_bytes=None)  # the engine measures there, and takes what is left
    split = f"{limits.iterations} engine iterations ({limits.reason})"
    further = f", then up to {demand.forced} for the further tokens of options" if demand.forced else ""
    log.info(
        "a call asks up to %d sequences, %d tokens: %s",
        demand.requests,
        demand.tokens,
        (split if limits.iterations > 1 else "one engine iteration") + further,
    )
    return limits


def free_bytes(layout: Layout, dtype: torch.dtype, copies: int, utilization: float) -> int:
    """Memory that is left for steps once the weights are loaded: on the GPU, else on the machine."""
    if torch.cuda.is_available():
        available = int(torch.cuda.mem_get_info()[0] * utilization)
    else:
        import psutil

        available = psutil.virtual_memory().available
    linears = sum(matrix.rows * matrix.cols for matrix in layout.matrices)
    return available - (layout.num_parameters + copies * linears) * dtype.itemsize


def _length(demand: Demand, wanted: Wanted, context: int) -> int:
    limit = context if wanted.max_length is None else wanted.max_length
    if demand.longest > limit:
        raise ConfigError(
            f"a sequence of {demand.longest} tokens does not fit the engine's context of {limit}: raise "
            f"`model.max_length` (the model itself can take {context}) or set `task.truncate=left`"
        )
    if wanted.max_length is not None:
        return wanted.max_length
    return min(-(-demand.longest // wanted.block_size) * wanted.block_size, limit)
