"""Plain descent in factor space: ``P -= lr * c * U`` (LoZO, Chen et al. 2024, Alg. 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zo_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent.

    Args:
        lr: learning rate, for the direction's own ``scale``; a scheduler multiplies it.
        weight_decay: must be 0: decay scales the base, which is frozen.
    """

    lr: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise ConfigError(f"`update.lr` must be finite and not negative, not {self.lr}")
        if self.weight_decay:
            raise ConfigError(
                f"`update.weight_decay`={self.weight_decay} would scale the base weights, which stay frozen; "
                "it is not a low-rank change. Set `update.weight_decay=0`"
            )

    def init(self, left_OR: torch.Tensor) -> dict[str, torch.Tensor]:
        """No state."""
        return {}

    def apply(
        self,
        left_OR: torch.Tensor,
        terms: Sequence[tuple[float, torch.Tensor]],
        lr: float,
        state: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Descend along every term.

        Examples:
            >>> update = Sgd(lr=0.1)
            >>> left, _ = update.apply(torch.zeros(2, 1), [(2.0, torch.ones(2, 1))], 0.5, {})
            >>> left.tolist()
            [[-1.0], [-1.0]]
        """
        for coefficient, drawn_OR in terms:
            left_OR = left_OR + drawn_OR * (-lr * coefficient)
        return left_OR, state
