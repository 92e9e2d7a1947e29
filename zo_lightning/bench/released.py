"""The dense path as released LoZO runs it: the baseline of the benchmarks, written from a description of that code.

Every step makes ``z = U V^T`` anew from a seeded stream for each of three perturbations (plus, minus, restore) and for
the update, and writes it into the weights. Losses come from one padded row for each answer option, with logits at
every position. The operations on weights are the released ones, one torch call for each; only the loss is cheaper here:
log-probabilities are taken where they are scored, not at every position.

Shape suffixes: O rows and I columns of a parameter, R the rank, K scored positions, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zo_lightning.bench.rows import candidate_rows, left_padded
from zo_lightning.core.objective import observe
from zo_lightning.core.types import Example, Score

Factors = dict[str, torch.Tensor]
_NO_DECAY = ("bias", "layer_norm", "layernorm")


class ReleasedWeights:
    """The writes of a step into dense weights.

    Args:
        parameters: those that are trained; those of two dimensions take low-rank directions, others dense ones.
        rank: columns of U and V.
        refresh_every: steps over which V stays.
        eps: finite-difference step.
        lr: learning rate.
        weight_decay: of matrices.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        *,
        rank: int,
        refresh_every: int,
        eps: float,
        lr: float,
        weight_decay: float = 0.0,
    ) -> None:
        self._parameters = dict(parameters)
        self._rank, self._refresh_every, self._eps, self._lr = rank, refresh_every, eps, lr
        self._weight_decay = weight_decay
        self._step, self._seed = 0, 0
        self._right: dict[str, torch.Tensor] = {}

    def begin(self, step: int, *, seed: int) -> None:
        """Start a step, whose directions come from this seed; a stage's first one draws V."""
        self._step, self._seed = step, seed

    def perturb(self, scale: float) -> None:
        """Add ``scale * eps * z`` to every parameter."""
        torch.manual_seed(self._seed)
        for name, parameter in self._parameters.items():
            self._refresh(name, parameter)
            self._add(parameter, self._direction(name, parameter), scale)

    def factors(self) -> tuple[Factors, Factors]:
        """U times eps, and V, of every matrix: what perturbs a forward pass without a write."""
        torch.manual_seed(self._seed)
        lefts = {}
        for name, parameter in self._parameters.items():
            if parameter.ndim >= 2:
                self._refresh(name, parameter)
                lefts[name] = self._normal(parameter, parameter.shape[0], self._rank) * self._eps
        return lefts, self._right

    def update(self, coefficient: float) -> None:
        """Descend along ``coefficient * z``. As released, a stage's first step draws another U than it measured."""
        torch.manual_seed(self._seed)
        for name, parameter in self._parameters.items():
            decay = None if any(word in name for word in _NO_DECAY) else self._weight_decay
            self._descend(parameter, self._direction(name, parameter), coefficient, decay)

    def _refresh(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.ndim >= 2 and self._step % self._refresh_every == 0:
            self._right[name] = self._normal(parameter, parameter.shape[1], self._rank)

    def _direction(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        if parameter.ndim < 2:
            return self._normal(parameter, *parameter.shape)
        return self._normal(parameter, parameter.shape[0], self._rank) @ self._right[name].t()

    def _add(self, parameter: torch.Tensor, z: torch.Tensor, scale: float) -> None:
        parameter.data = parameter.data + scale * z * self._eps

    def _descend(self, parameter: torch.Tensor, z: torch.Tensor, coefficient: float, decay: float | None) -> None:
        if decay is None:
            parameter.data = parameter.data - self._lr * (coefficient * z)
        else:
            parameter.data = parameter.data - self._lr * (coefficient * z + decay * parameter.data)

    @staticmethod
    def _normal(like: torch.Tensor, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=like.device, dtype=like.dtype)


class InPlaceWeights(ReleasedWeights):
    """The same writes as one in-place operation each: faster than what was released, and the harder baseline."""

    def _add(self, parameter: torch.Tensor, z: torch.Tensor, scale: float) -> None:
        parameter.data.add_(z, alpha=scale * self._eps)

    def _descend(self, parameter: torch.Tensor, z: torch.Tensor, coefficient: float, decay: float | None) -> None:
        if decay:
            parameter.data.mul_(1 - self._lr * decay)
        parameter.data.add_(z, alpha=-self._lr * coefficient)


class ReleasedLozo:
    """Training steps of released LoZO on a transformers model.

    Args:
        model: a transformers model, whose weights are written.
        objective: what is scored.
        only: names of the parameters to train; None trains all, as released.
        weights: how they are written.
        **settings: of the weights.
    """

    def __init__(
        self,
        model: Any,
        *,
        objective: Score,
        only: Sequence[str] | None = None,
        weights: type[ReleasedWeights] = ReleasedWeights,
        **settings: Any,
    ) -> None:
        self.model, self._objective, self._eps = model, objective, settings["eps"]
        named = {name: value for name, value in model.named_parameters() if only is None or name in only}
        self.weights = weights(named, **settings)

    @torch.inference_mode()
    def step(self, examples: Sequence[Example], number: int) -> float:
        """Step ``number``, which is its seed too; returns the projected gradient."""
        self.weights.begin(number, seed=number)
        self.weights.perturb(1.0)
        plus = self.loss(examples)
        self.weights.perturb(-2.0)
        minus = self.loss(examples)
        self.weights.perturb(1.0)
        coefficient = (plus - minus) / (2 * self._eps)
        self.weights.update(coefficient)
        return coefficient

    @torch.inference_mode()
    def loss(self, examples: Sequence[Example]) -> float:
        """Mean loss of the batch, in one forward pass."""
        logprobs = candidate_logprobs(self.model, examples)
        return observe(self._objective, examples, logprobs, tokens=0, seconds=0.0).value


def candidate_logprobs(model: Any, examples: Sequence[Example]) -> list[list[float]]:
    """Summed log-probabilities of every option (nats), from one padded row each, with logits at every position."""
    rows = iter(model(**left_padded(candidate_rows(examples), model.device), use_cache=False).logits)
    return [[_option_logprob(next(rows), option) for option in example.options] for example in examples]


def _option_logprob(logits_TV: torch.Tensor, option: tuple[int, ...]) -> float:
    logprobs_KV = logits_TV[-1 - len(option) : -1].float().log_softmax(-1)
    return float(logprobs_KV.gather(-1, torch.tensor(option, device=logits_TV.device)[:, None]).sum())
