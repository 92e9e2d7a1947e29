"""Exact option scores from next-token log-probabilities: one request for each node of a trie of options.

Options of one token each share a single node, the prompt itself, hence one request an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zo_lightning.core.types import Example


@dataclass(frozen=True, slots=True)
class Node:
    """Prompt to send and the next tokens whose log-probabilities are asked."""

    prompt: tuple[int, ...]
    children: tuple[int, ...]


def trie_nodes(example: Example) -> tuple[Node, ...]:
    """The nodes of an example's options, shortest prefix first, so that longer ones find theirs cached.

    Examples:
        >>> example = Example(prompt=(7,), options=((1, 2), (1, 3), (4,)), label=0)
        >>> [(node.prompt, node.children) for node in trie_nodes(example)]
        [((7,), (1, 4)), ((7, 1), (2, 3))]
    """
    children: dict[tuple[int, ...], dict[int, None]] = {}
    for option in example.options:
        for depth, token in enumerate(option):
            children.setdefault(example.prompt + option[:depth], {})[token] = None
    return tuple(Node(prompt, tuple(tokens)) for prompt, tokens in sorted(children.items(), key=lambda kv: len(kv[0])))


def option_logprobs(example: Example, answers: Mapping[tuple[int, ...], Mapping[int, float]]) -> tuple[float, ...]:
    """Sum of token log-probabilities of every option.

    Args:
        example: the example whose nodes were asked.
        answers: for each node's prompt, the log-probability of each child (nats).

    Examples:
        >>> example = Example(prompt=(7,), options=((1, 2), (4,)), label=0)
        >>> option_logprobs(example, {(7,): {1: -1.0, 4: -3.0}, (7, 1): {2: -0.5}})
        (-1.5, -3.0)
    """
    return tuple(
        sum(answers[example.prompt + option[:depth]][token] for depth, token in enumerate(option))
        for option in example.options
    )
