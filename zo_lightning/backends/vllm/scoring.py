"""Exact option scores from next-token log-probabilities, asked once at each node of a trie of options.

Options of one token each share a single node, the prompt itself, hence one request an example. Nodes that follow each
other can share a request too, where the engine can be made to continue with given tokens: a request of its own would
compute again what the prefix cache lacks, up to a block of tokens a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from zo_lightning.core.types import Example

FORCED_KEY = "zo_forced"  # of a request's further arguments: the tokens to continue with
MAX_ASKED = 128  # tokens that the engine takes in ``logprob_token_ids``


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


@dataclass(frozen=True, slots=True)
class Walk:
    """Nodes that follow each other down a trie: one request."""

    nodes: tuple[Node, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        """What to send: the first node's prompt."""
        return self.nodes[0].prompt

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens that lead from the first node to the last."""
        return self.nodes[-1].prompt[len(self.prompt) :]

    @property
    def asked(self) -> tuple[int, ...]:
        """Children of any node but those that are forced there: an engine reports what it continues with unasked."""
        forced = (*self.forced, None)
        asked = [c for node, step in zip(self.nodes, forced, strict=True) for c in node.children if c != step]
        return tuple(dict.fromkeys(asked))


def trie_walks(example: Example) -> tuple[Walk, ...]:
    """The nodes of an example's options in as few walks as there are ways through them, shortest prefix first.

    Examples:
        >>> example = Example(prompt=(7,), options=((1, 2, 5), (1, 3), (4, 6)), label=0)
        >>> [(walk.prompt, walk.forced, walk.asked) for walk in trie_walks(example)]
        [((7,), (1, 2), (4, 3, 5)), ((7, 4), (), (6,))]
    """
    left = {node.prompt: node for node in trie_nodes(example)}
    walks = []
    while left:
        node: Node | None = left.pop(next(iter(left)))
        nodes = []
        while node is not None:
            nodes.append(node)
            below = ((*node.prompt, child) for child in node.children)
            node = next((left.pop(prompt) for prompt in below if prompt in left), None)
        walks.append(Walk(tuple(nodes)))
    return tuple(walks)


def requests_of(example: Example) -> tuple[Walk, ...]:
    """What the engine of this machine is asked: ways down the trie on CPU, single nodes on GPU; cut where too long.

    A node whose children are too many for one request is in several.
    """
    # Tokens are forced through the V1 model runner, which CPUs have; a GPU's own small blocks waste less.
    on_gpu = torch.cuda.is_available()
    walks = tuple(Walk((n,)) for n in trie_nodes(example)) if on_gpu else trie_walks(example)
    return tuple(part for walk in walks for part in _cut(walk))


def _cut(walk: Walk) -> Iterator[Walk]:
    if len(walk.asked) <= MAX_ASKED:
        yield walk
        return
    nodes: tuple[Node, ...] = ()
    for part in (part for node in walk.nodes for part in _parts(node)):
        again = bool(nodes) and part.prompt == nodes[-1].prompt
        if again or len(Walk((*nodes, part)).asked) > MAX_ASKED:
            yield Walk(nodes)
            nodes = ()
        nodes = (*nodes, part)
    yield Walk(nodes)


def _parts(node: Node) -> Iterator[Node]:
    for start in range(0, len(node.children), MAX_ASKED):
        yield Node(node.prompt, node.children[start : start + MAX_ASKED])


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
