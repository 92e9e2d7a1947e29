"""Metrics of validation and test: over all examples of an epoch, not means of batch means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from zo_lightning.core.types import Example, Observation


class WeightedMean(Metric):
    """Mean of losses by their weights in double precision; a loss that is not a number shows in it.

    torchmetrics' own mean casts to single precision, and drops such losses or, if told not to, the weights.
    """

    total: torch.Tensor
    weight: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "weight"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, values: Sequence[float], weights: Sequence[float]) -> None:
        """Add a batch."""
        # Not in place: a reset inside `trainer.validate` leaves inference tensors behind.
        self.total = self.total + math.fsum(v * w for v, w in zip(values, weights, strict=True))
        self.weight = self.weight + math.fsum(weights)

    def compute(self) -> torch.Tensor:
        """The mean so far."""
        return self.total / self.weight


class ScoreMetrics(nn.Module):
    """Loss and accuracy of one stage.

    Args:
        num_labels: options of an example, at most.
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.no_answer = num_labels  # one more class, which is never right
        self.loss = WeightedMean()
        self.accuracy = MulticlassAccuracy(num_classes=num_labels + 1, average="micro")

    def update(self, examples: Sequence[Example], seen: Observation) -> None:
        """Add a batch."""
        self.loss.update(seen.losses, seen.weights)
        choices = [choice(scores, otherwise=self.no_answer) for scores in seen.scores]
        right = [c if c in e.also_right else e.label for c, e in zip(choices, examples, strict=True)]
        self.accuracy.update(torch.tensor(choices), torch.tensor(right))


def choice(scores: Sequence[float], *, otherwise: int) -> int:
    """Index of the highest score, the first among equals; ``otherwise`` if a score is not a number.

    Examples:
        >>> choice((-2.0, -1.0, -1.0), otherwise=3), choice((-2.0, float("nan")), otherwise=3)
        (1, 3)
    """
    return otherwise if any(map(math.isnan, scores)) else scores.index(max(scores))
