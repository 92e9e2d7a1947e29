"""What a packed LoZO step costs on one device, beside matched inference and the dense step as LoZO released it.

    python benchmarks/gpu_step.py [--shape qwen3-14b] [--steps 20] [--rank 2]

Weights of a model's shape are drawn on the device: nothing is read from or written to a disk. The three cases take
turns on the same batches of 16 sequences with the lengths of SST-2:

- ``step``: two points by the packed backend, estimate and update;
- ``matched``: the same requests by the base alone, without directions, factors or update;
- ``dense``: one padded row for each candidate; ``U V^T`` is made for every matrix, which is written four times (plus,
  minus, restore, update).

A table, then one line of JSON with the ratios of medians and their 95 % intervals.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from zo_lightning.backends.packed import PackedBackend
from zo_lightning.core.objective import observe
from zo_lightning.core.types import BankSpec, Example, Score, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.estimators import Spsa
from zo_lightning.models import layout_of
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

BATCH, EPS, LR, WARM_UP = 16, 1e-3, 1e-6, 3
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-14b": {
        "vocab_size": 151936,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-14b")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rank", type=int, default=2)
    options = parser.parse_args()

    backend = PackedBackend()
    config = Qwen3Config(**SHAPES[options.shape], max_position_embeddings=2048, tie_word_embeddings=False)
    model = random_model(config, backend.device, getattr(torch, backend.dtype))
    dense = Dense(model, options.rank)  # before the backend replaces modules
    packed = Packed(backend, model, options.rank)
    batches = [batch(random.Random(number), config.vocab_size) for number in range(WARM_UP + options.steps)]
    cases = {"step": packed.step, "matched": packed.matched, "dense": dense.step}
    seconds = measure(cases, batches, backend.device)
    print_results(options, backend, seconds)


def random_model(config: Qwen3Config, device: torch.device, dtype: torch.dtype) -> Any:
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
        self.backend, self.direction = backend, LowRank(rank=rank, refresh_every=50, cycle=1)
        backend.adopt(model, layout_of(model, "random"), self.direction, Sgd(lr=LR), BankSpec(rank=rank, capacity=rank))

    def step(self, examples: Sequence[Example]) -> None:
        version = self.backend.version
        keys = self.direction.keys(seed=0, step=version)
        requests = Antithetic(eps=EPS).plan(keys, examples, version, Score())
        estimate = Spsa().estimate(requests, self.backend.evaluate(requests))
        self.backend.commit(StepRecord(step=version, version=version, lr=LR, terms=estimate.terms))

    def matched(self, examples: Sequence[Example]) -> None:
        self.backend.infer(examples, examples)


class Dense:
    """LoZO as released: every pass draws the directions anew and writes all parameters."""

    def __init__(self, model: Any, rank: int) -> None:
        # Modules of its own around the same parameters: a model of this size is held once.
        self.model = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
        self.rank, self.number = rank, 0
        self.right: dict[str, torch.Tensor] = {}

    @torch.inference_mode()
    def step(self, examples: Sequence[Example]) -> None:
        self.write(EPS)
        plus = self.loss(examples)
        self.write(-2 * EPS)
        minus = self.loss(examples)
        self.write(EPS)
        self.write(-LR * (plus - minus) / (2 * EPS))
        self.number += 1

    def write(self, coefficient: float) -> None:
        torch.manual_seed(self.number)
        for name, parameter in self.model.named_parameters():
            parameter.data = parameter.data + coefficient * self.direction(name, parameter)

    def direction(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        if parameter.dim() == 1:
            return torch.randn_like(parameter)
        if name not in self.right:
            self.right[name] = parameter.new_empty(parameter.shape[1], self.rank).normal_()
        return parameter.new_empty(parameter.shape[0], self.rank).normal_() @ self.right[name].T

    def loss(self, examples: Sequence[Example]) -> float:
        rows = [example.prompt + option for example in examples for option in example.options]
        length = -(-max(map(len, rows)) // 8) * 8  # padded to a multiple of 8 on the left, as released
        ids = torch.tensor([(0,) * (length - len(row)) + row for row in rows], device=self.model.device)
        mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows], device=self.model.device)
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, -2]
        last = logits.float().log_softmax(-1).gather(-1, ids[:, -1:]).view(len(examples), -1).tolist()
        return observe(Score(), examples, last, tokens=ids.numel(), seconds=0.0).value


def measure(
    cases: dict[str, Callable[[tuple[Example, ...]], None]],
    batches: Sequence[tuple[Example, ...]],
    device: torch.device,
) -> dict[str, list[float]]:
    """Seconds of every case on every batch behind the warm-up, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number, examples in enumerate(batches):
        for name, case in cases.items():
            start = time.perf_counter()
            case(examples)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(over: list[float], under: list[float], draws: int = 2000) -> dict[str, Any]:
    """Ratio of medians and its 95 % interval, from resampled pairs."""
    drawn, pairs = random.Random(0), list(zip(over, under, strict=True))

    def of(sample: Sequence[tuple[float, float]]) -> float:
        return statistics.median(a for a, _ in sample) / statistics.median(b for _, b in sample)

    spread = sorted(of(drawn.choices(pairs, k=len(pairs))) for _ in range(draws))
    return {"value": round(of(pairs), 4), "interval": [round(spread[int(q * draws)], 4) for q in (0.025, 0.975)]}


def print_results(options: argparse.Namespace, backend: PackedBackend, seconds: dict[str, list[float]]) -> None:
    on_gpu = backend.device.type == "cuda"
    name = torch.cuda.get_device_name(backend.device) if on_gpu else "CPU"
    print(f"{options.shape}, {backend.dtype}, {name}, rank {options.rank}, 2 points x {BATCH} examples")
    for case, values in seconds.items():
        ordered = sorted(values)
        print(
            f"{case:10}{statistics.median(values) * 1e3:10.2f} ms   {ordered[0] * 1e3:.2f} to {ordered[-1] * 1e3:.2f}"
        )
    peak = torch.cuda.max_memory_allocated(backend.device) / 1e9 if on_gpu else None
    print(f"peak memory {peak:.1f} GB" if on_gpu else "peak memory is counted on a GPU only")
    facts = {
        "shape": options.shape,
        "device": name,
        "dtype": backend.dtype,
        "steps": options.steps,
        "peak_memory_gb": peak,
        "milliseconds": {case: round(statistics.median(values) * 1e3, 3) for case, values in seconds.items()},
        "step_over_matched": ratio(seconds["step"], seconds["matched"]),
        "dense_over_step": ratio(seconds["dense"], seconds["step"]),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
