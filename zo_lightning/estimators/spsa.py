"""Simultaneous perturbation (Spall 1992; MeZO, Malladi et al. 2023, Def. 1)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_lightning.core.types import DirectionKey, Estimate, EvalRequest, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Spsa:
    """``c = (L_plus - L_minus) / (2 eps)`` along each direction, averaged over directions.

    Losses are pooled over the whole accumulation window before the difference is taken, so that two
    half batches give what one whole batch gives.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"antithetic pairs"})

    def estimate(self, requests: Sequence[EvalRequest], observations: Sequence[Observation]) -> Estimate:
        """One term a direction.

        Args:
            requests: all requests of the window, each with one term.
            observations: their answers, in the same order.
        """
        sums: dict[tuple[DirectionKey, float], list[float]] = defaultdict(list)
        weights: dict[tuple[DirectionKey, float], list[float]] = defaultdict(list)
        for request, observation in zip(requests, observations, strict=True):
            (term,) = request.point.terms
            sums[term].extend(l * w for l, w in zip(observation.losses, observation.weights, strict=True))
            weights[term].extend(observation.weights)
        means = {term: math.fsum(sums[term]) / math.fsum(weights[term]) for term in sums}
        keys = list(dict.fromkeys(key for key, _ in means))
        terms = []
        for key in keys:
            plus, minus = sorted((a for k, a in means if k == key), reverse=True)
            slope = (means[key, plus] - means[key, minus]) / (plus - minus)
            terms.append((key, slope / len(keys)))
        return Estimate(terms=tuple(terms), loss=math.fsum(means.values()) / len(means))
