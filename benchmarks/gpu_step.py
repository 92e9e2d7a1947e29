"""What a packed LoZO step costs on one device, beside matched inference and the dense step as LoZO released it.

    python benchmarks/gpu_step.py [--shape qwen3-14b] [--steps 20] [--rank 2] [--folder outputs/gpu_step]

Weights of a model's shape are drawn on the device: no checkpoint is read or written. The three cases take turns on the
same batches of 16 sequences with the lengths of SST-2:

- ``step``: two points by the packed backend, estimate and update;
- ``matched``: the same requests by the base alone, without directions, factors or update;
- ``dense``: released LoZO, as in ``zo-bench step``.

A table and a picture, then one line of JSON with the ratios of medians and their 95 % intervals.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

import zo_lightning.bench
from zo_lightning.backends.packed import PackedBackend
from zo_lightning.bench.released import ReleasedLozo
from zo_lightning.bench.report import Report, bars
from zo_lightning.bench.timing import measure, ratio_of_medians
from zo_lightning.core.types import BankSpec, Example, Score, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.estimators import Spsa
from zo_lightning.models import layout_of
from zo_lightning.models.layout import load_config
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

BATCH, EPS, LR, WARM_UP, REFRESH_EVERY = 16, 1e-3, 1e-6, 3, 50
SHAPES: dict[str, Callable[[], Any]] = {
    "qwen3-14b": lambda: load_config(Path(zo_lightning.bench.__file__).parent / "shapes" / "qwen3-14b"),
    "tiny": lambda: Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=False,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-14b")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("outputs/gpu_step"))
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")

    backend = PackedBackend()
    config = SHAPES[options.shape]()
    model = random_model(config, backend.device, getattr(torch, backend.dtype))
    dense = ReleasedLozo(  # before the backend replaces modules
        with_own_modules(model),
        objective=Score(),
        rank=options.rank,
        refresh_every=REFRESH_EVERY,
        eps=EPS,
        lr=LR,
    )
    packed = Packed(backend, model, options.rank)
    batches = [batch(random.Random(number), config.vocab_size) for number in range(WARM_UP + options.steps)]
    cases = {
        "step": lambda number: packed.step(batches[number]),
        "matched": lambda number: packed.matched(batches[number]),
        "dense": lambda number: dense.step(batches[number], number),
    }
    seconds = measure(cases, rounds=options.steps, warm_up=WARM_UP)
    report(options, backend, seconds).publish(options.folder, options.shape)


def random_model(config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Normal weights of a usual scale; norms of one."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model = model.to_empty(device=device).requires_grad_(False)
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)  # buffers, which `to_empty` leaves empty
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(std=0.02)
    return model.eval()


def with_own_modules(model: Any) -> Any:
    """The same parameters in modules of their own: a model of this size is held once."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def batch(drawn: random.Random, vocabulary: int) -> tuple[Example, ...]:
    """Random tokens with the lengths of SST-2's training sentences in LoZO's template: 8 to 60, a median of 15."""
    lengths = [min(60, max(8, round(drawn.lognormvariate(2.75, 0.45)))) for _ in range(BATCH)]
    return tuple(
        Example(prompt=tuple(drawn.randrange(vocabulary) for _ in range(length)), options=((1,), (2,)), label=i % 2)
        for i, length in enumerate(lengths)
    )


class Packed:
    """LoZO by the packed backend."""

    def __init__(self, backend: PackedBackend, model: Any, rank: int) -> None:
        self.backend, self.direction = backend, LowRank(rank=rank, refresh_every=REFRESH_EVERY, cycle=1)
        backend.adopt(model, layout_of(model, "random"), self.direction, Sgd(lr=LR), BankSpec(rank=rank, capacity=rank))

    def step(self, examples: Sequence[Example]) -> None:
        version = self.backend.version
        keys = self.direction.keys(seed=0, step=version)
        requests = Antithetic(eps=EPS).plan(keys, examples, version, Score())
        estimate = Spsa().estimate(requests, self.backend.evaluate(requests))
        self.backend.commit(StepRecord(step=version, version=version, lr=LR, terms=estimate.terms))

    def matched(self, examples: Sequence[Example]) -> None:
        self.backend.infer(examples, examples)


def report(options: argparse.Namespace, backend: PackedBackend, seconds: Mapping[str, Sequence[float]]) -> Report:
    on_gpu = backend.device.type == "cuda"
    name = torch.cuda.get_device_name(backend.device) if on_gpu else "CPU"
    peak = torch.cuda.max_memory_allocated(backend.device) / 1e9 if on_gpu else None
    milliseconds = {case: 1e3 * median(values) for case, values in seconds.items()}
    ratios = {
        "step_over_matched": ratio_of_medians(seconds["step"], seconds["matched"]),
        "dense_over_step": ratio_of_medians(seconds["dense"], seconds["step"]),
    }
    facts: dict[str, Any] = {
        "shape": options.shape,
        "device": name,
        "dtype": backend.dtype,
        "steps": options.steps,
        "peak_memory_gb": peak,
        "milliseconds": milliseconds,
    }
    for key, ratio in ratios.items():
        facts |= ratio.facts(key)
    return Report(
        title=f"a packed step: {options.shape}, {backend.dtype}, {name}, rank {options.rank}, 2 points x {BATCH}",
        columns=("", "ms", "fastest", "slowest"),
        rows=[
            (case, f"{milliseconds[case]:.2f}", f"{1e3 * min(values):.2f}", f"{1e3 * max(values):.2f}")
            for case, values in seconds.items()
        ],
        facts=facts,
        draw=lambda axes: bars(axes, milliseconds, "milliseconds a step (median)"),
        notes=(
            *(f"{key.replace('_', ' ')}: {ratio}" for key, ratio in ratios.items()),
            f"peak memory {peak:.1f} GB" if on_gpu else "peak memory is counted on a GPU only",
        ),
    )


if __name__ == "__main__":
    main()
