"""LoZO twice: through the parts of the library on any backend, and by hand on a transformers model.

The second one is the reference: its weights really change, there is no bank, no adapter, no batch and no padding, and
of the library it uses only the draws of ``LowRank``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zo_lightning.core.types import EvalRequest, Example, Layout, Observation, Score, StepRecord
from zo_lightning.directions import LowRank
from zo_lightning.estimators import Spsa
from zo_lightning.queries import Antithetic


@dataclass(frozen=True)
class Step:
    """What one step measured."""

    stage: int
    plus: float
    minus: float
    slope: float


@dataclass(frozen=True, kw_only=True)
class Lozo:
    """Settings of a run; ``direction.scale`` must be ``none`` and every step applies what it measured."""

    direction: LowRank
    eps: float
    lr: float
    seed: int

    def requests(self, step: int, examples: Sequence[Example], version: int) -> tuple[EvalRequest, ...]:
        keys = self.direction.keys(seed=self.seed, step=step)
        return Antithetic(eps=self.eps).plan(keys, examples, version, Score())

    def run(self, backend: Any, batches: Sequence[Sequence[Example]]) -> list[Step]:
        """A step a batch, on an open backend at version 0 that follows its own slopes."""
        steps = []
        for step, examples in enumerate(batches):
            requests = self.requests(step, examples, backend.version)
            plus, minus = observations = backend.evaluate(requests)
            ((key, slope),) = Spsa().estimate(requests, observations).terms
            steps.append(Step(key.stage, plus.value, minus.value, slope))
            backend.commit(StepRecord(step=step, version=step, lr=self.lr, terms=((key, slope),)))
        return steps


class Reference:
    """A model whose trainable matrices are dense and change in place: ``W -= lr * c * U V^T``."""

    def __init__(self, layout: Layout, lozo: Lozo) -> None:
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(Path(layout.model), dtype=torch.float32)
        self.model, self.layout, self.lozo = model.requires_grad_(False), layout, lozo
        self.weights = [self.model.get_parameter(matrix.parameter) for matrix in layout.matrices]

    def run(self, batches: Sequence[Sequence[Example]]) -> list[Step]:
        return [self.step(step, examples) for step, examples in enumerate(batches)]

    def step(self, step: int, examples: Sequence[Example]) -> Step:
        lozo = self.lozo
        stage = step // lozo.direction.refresh_every % (lozo.direction.cycle or step + 1)
        directions = self.directions(step)
        kept = [weight.clone() for weight in self.weights]
        losses = []
        for sign in (1.0, -1.0):
            for weight, before, d_OI in zip(self.weights, kept, directions, strict=True):
                weight.copy_(before + sign * lozo.eps * d_OI)
            losses.append(self.loss(examples))
        slope = (losses[0] - losses[1]) / (2 * lozo.eps)
        for weight, before, d_OI in zip(self.weights, kept, directions, strict=True):
            weight.copy_(before - lozo.lr * slope * d_OI)
        return Step(stage, *losses, slope)

    def directions(self, step: int) -> list[torch.Tensor]:
        """``U V^T`` of every matrix, a dense draw of every vector."""
        (key,) = self.lozo.direction.keys(seed=self.lozo.seed, step=step)
        cpu = torch.device("cpu")
        U_OR = self.lozo.direction.left(key, self.layout, cpu).split([m.rows for m in self.layout.matrices])
        V_IR = self.lozo.direction.right(key, self.layout, cpu).split([m.cols for m in self.layout.matrices])
        return [
            U[:, 0] if matrix.vector else U @ V.T for matrix, U, V in zip(self.layout.matrices, U_OR, V_IR, strict=True)
        ]

    def loss(self, examples: Sequence[Example]) -> float:
        """Mean over examples of the cross entropy over the options' mean token log-probabilities."""
        losses = []
        for example in examples:
            scores = torch.stack([self.score(example.prompt, option) for option in example.options])
            losses.append(torch.nn.functional.cross_entropy(scores, torch.tensor(example.label)))
        return float(torch.stack(losses).double().mean())

    @torch.inference_mode()
    def score(self, prompt: tuple[int, ...], option: tuple[int, ...]) -> torch.Tensor:
        """Mean log-probability of an option's tokens, from one sequence alone."""
        logits = self.model(torch.tensor([prompt + option])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1).gather(-1, torch.tensor(option)[:, None]).mean()


def noise(backend: Any, lozo: Lozo, examples: Sequence[Example]) -> float:
    """Spread of a slope over batch orders: what floating point alone does to it.

    Asked as it is, backwards and in two halves, and never less than what the losses' own last bits can make of it.
    """
    slopes, largest = [], 0.0
    half = len(examples) // 2
    for parts in ([examples], [examples[::-1]], [examples[half:], examples[:half]]):
        requests = [request for part in parts for request in lozo.requests(0, part, backend.version)]
        observations: Sequence[Observation] = backend.evaluate(requests)
        ((_, slope),) = Spsa().estimate(requests, observations).terms
        slopes.append(slope)
        largest = max(largest, *(abs(score) for seen in observations for row in seen.scores for score in row))
    last_bit = torch.finfo(torch.float32).eps * largest / (2 * lozo.eps)
    return max(max(slopes) - min(slopes), last_bit)
