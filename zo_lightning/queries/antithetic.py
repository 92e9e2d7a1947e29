"""Antithetic pairs (MeZO, Malladi et al. 2023, Alg. 1): each direction at plus and minus eps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_lightning.core.types import DirectionKey, EvalRequest, Example, Objective, Observation, Point
from zo_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Antithetic:
    """``theta + eps * d`` and ``theta - eps * d`` on the same examples.

    Args:
        eps: finite-difference step, in units of the direction.
    """

    eps: float
    max_points: ClassVar[int] = 2
    provides: ClassVar[frozenset[str]] = frozenset({"antithetic pairs"})

    def __post_init__(self) -> None:
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise ConfigError(f"`query.eps` must be positive and finite, not {self.eps}")

    def plan(
        self, keys: Sequence[DirectionKey], examples: Sequence[Example], version: int, objective: Objective
    ) -> tuple[EvalRequest, ...]:
        """Plus, then minus, for every key."""
        return tuple(
            EvalRequest(
                point=Point(version=version, terms=((key, sign * self.eps),)),
                examples=tuple(examples),
                objective=objective,
            )
            for key in keys
            for sign in (1.0, -1.0)
        )

    def follow(self, requests: Sequence[EvalRequest], observations: Sequence[Observation]) -> tuple[EvalRequest, ...]:
        """Nothing: both sides are asked at once."""
        return ()
