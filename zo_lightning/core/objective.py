"""Losses from option scores: one pure function that every backend shares.

Source: LoZO's classification loss, a cross entropy over the options' mean token log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from zo_lightning.core.types import Example, Observation, Score


def cross_entropy(scores: Sequence[float], label: int) -> float:
    """Cross entropy of a softmax over scores.

    Examples:
        >>> round(cross_entropy((0.0, 0.0), 1), 6)
        0.693147
    """
    top = max(scores)
    return top + math.log(math.fsum(math.exp(score - top) for score in scores)) - scores[label]


def observe(
    objective: Score,
    examples: Sequence[Example],
    logprobs: Sequence[Sequence[float]],
    *,
    tokens: int,
    seconds: float,
) -> Observation:
    """Build the observation of one request.

    Args:
        objective: which loss.
        examples: the request's examples.
        logprobs: for each example and option, the sum of the option's token log-probabilities (nats).
        tokens: tokens that the engine computed for the request.
        seconds: wall time that it took.

    Examples:
        >>> example = Example(prompt=(1,), options=((2,), (3, 4)), label=1)
        >>> seen = observe(Score(loss="gold"), [example], [(-1.0, -3.0)], tokens=4, seconds=0.1)
        >>> seen.losses, seen.weights, seen.scores
        ((1.5,), (2.0,), ((-1.0, -1.5),))
    """
    scores = tuple(
        tuple(total / len(option) for total, option in zip(totals, example.options, strict=True))
        for example, totals in zip(examples, logprobs, strict=True)
    )
    if objective.loss == "candidates":
        losses = tuple(
            cross_entropy(s, e.label) if _finite(s) else math.nan for s, e in zip(scores, examples, strict=True)
        )
        weights = (1.0,) * len(examples)
    else:
        losses = tuple(-s[e.label] for s, e in zip(scores, examples, strict=True))
        weights = tuple(float(len(e.options[e.label])) for e in examples)
    return Observation(losses=losses, weights=weights, scores=scores, tokens=tokens, seconds=seconds)


def _finite(scores: Sequence[float]) -> bool:
    return all(math.isfinite(score) for score in scores)
