"""Sequences as one ragged batch: all tokens in a row, without a padded one.

Shape suffixes: T tokens, S tokens whose logits are needed, K scored continuations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import torch

from zo_lightning.backends.packed.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Trees after each other, and which of their logits are read.

    ``bounds`` are the first tokens of the trees and the number of all tokens.
    """

    trees: tuple[Tree, ...]
    bounds: tuple[int, ...]
    ids: torch.Tensor
    positions: torch.Tensor
    logits: torch.Tensor
    scored_rows: torch.Tensor
    scored_ids: torch.Tensor

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each tree."""
        return tuple(len(tree.tokens) for tree in self.trees)

    @property
    def logit_counts(self) -> tuple[int, ...]:
        """For each tree, the tokens whose logits are needed."""
        return tuple(len(tree.tokens) - tree.logits_from for tree in self.trees)

    def option_logprobs(self, logprobs_K: Sequence[float]) -> Iterator[tuple[float, ...]]:
        """For each tree, the sum of token log-probabilities of every option."""
        remaining = iter(logprobs_K)
        for tree in self.trees:
            yield tuple(sum(islice(remaining, len(option))) for option in tree.scored)


def ragged(trees: Sequence[Tree], device: torch.device) -> Ragged:
    """Put trees into one batch.

    Examples:
        >>> from zo_lightning.core.types import Example
        >>> from zo_lightning.backends.packed.tree import tree_of
        >>> examples = [Example(prompt=p, options=((1,), (2,)), label=0) for p in ((7,), (8, 9))]
        >>> batch = ragged([tree_of(example) for example in examples], torch.device("cpu"))
        >>> batch.ids.tolist(), batch.logits.tolist(), batch.scored_rows.tolist()
        ([7, 8, 9], [0, 2], [0, 0, 1, 1])
    """
    bounds = (0, *accumulate(len(tree.tokens) for tree in trees))
    logits: list[int] = []
    rows: list[int] = []
    ids: list[int] = []
    for tree, start in zip(trees, bounds, strict=False):
        shift = len(logits) - tree.logits_from
        logits += range(start + tree.logits_from, start + len(tree.tokens))
        for option in tree.scored:
            rows += [shift + place for place, _ in option]
            ids += [token for _, token in option]

    def tensor(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, device=device)

    return Ragged(
        trees=tuple(trees),
        bounds=bounds,
        ids=tensor([token for tree in trees for token in tree.tokens]),
        positions=tensor([position for tree in trees for position in tree.positions]),
        logits=tensor(logits),
        scored_rows=tensor(rows),
        scored_ids=tensor(ids),
    )


def split(lengths: Sequence[int], limit: int) -> list[slice]:
    """Consecutive sequences of at most ``limit`` tokens together; a longer one stands alone.

    Examples:
        >>> split([3, 4, 9, 1, 2], 7)
        [slice(0, 2, None), slice(2, 3, None), slice(3, 5, None)]
    """
    starts, total = [0], 0
    for place, length in enumerate(lengths):
        if total and total + length > limit:
            starts.append(place)
            total = 0
        total += length
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(lengths)], strict=True)]
