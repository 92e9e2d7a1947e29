"""An example as a tree of tokens: its prompt once, then the shared beginnings of its options."""

from __future__ import annotations

from dataclasses import dataclass

from zo_lightning.core.types import Example


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Tokens that have to be computed to score an example's options, each after its parent.

    Every token from the prompt's last on is followed by some option, so ``logits_from`` and all later tokens need
    logits. Options' last tokens are scored and never computed.
    """

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    parents: tuple[int, ...]  # of the tokens behind the prompt
    logits_from: int
    scored: tuple[tuple[tuple[int, int], ...], ...]  # for each option: (token that it follows, token id)

    @property
    def branches(self) -> bool:
        """Whether some token's parent is not the token before it."""
        return self.parents != tuple(range(self.logits_from, len(self.tokens) - 1))


def tree_of(example: Example) -> Tree:
    """The tree of an example.

    Examples:
        >>> tree = tree_of(Example(prompt=(7, 8), options=((1, 2), (1, 3, 5), (4, 6)), label=0))
        >>> tree.tokens, tree.positions, tree.parents
        ((7, 8, 1, 3, 4), (0, 1, 2, 3, 2), (1, 2, 1))
        >>> tree.scored
        (((1, 1), (2, 2)), ((1, 1), (2, 3), (3, 5)), ((1, 4), (4, 6)))
    """
    last = len(example.prompt) - 1
    places: dict[tuple[int, ...], int] = {(): last}
    parents = []
    for option in example.options:
        for depth in range(1, len(option)):
            if option[:depth] not in places:
                places[option[:depth]] = last + len(places)
                parents.append(places[option[: depth - 1]])
    return Tree(
        tokens=(*example.prompt, *(prefix[-1] for prefix in places if prefix)),
        positions=(*range(last), *(last + len(prefix) for prefix in places)),
        parents=tuple(parents),
        logits_from=last,
        scored=tuple(
            tuple((places[option[:depth]], token) for depth, token in enumerate(option)) for option in example.options
        ),
    )
