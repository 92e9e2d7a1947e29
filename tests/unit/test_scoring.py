"""From next-token log-probabilities to option scores to losses, against formulas and a brute-force model."""

from __future__ import annotations

import math
import random

import pytest
import torch

from zo_lightning.backends.vllm.scoring import MAX_ASKED, option_logprobs, requests_of, trie_nodes, trie_walks
from zo_lightning.core.objective import cross_entropy, observe
from zo_lightning.core.types import Example, Score


def next_token(prompt: tuple[int, ...], token: int) -> float:
    """A made-up model: any function of prompt and token will do."""
    return -random.Random(repr((prompt, token))).uniform(0.1, 5.0)


def shapes(options: tuple[tuple[int, ...], ...]) -> Example:
    return Example(prompt=(7, 8, 9), options=options, label=0)


EXAMPLES = {
    "one token each": shapes(((1,), (2,), (3,))),
    "two tokens each": shapes(((1, 2), (3, 4))),
    "mixed": shapes(((1,), (2, 3), (4, 5, 6))),
    "shared prefix": shapes(((1, 2, 3), (1, 2, 4), (1, 5))),
    "one is a prefix of the other": shapes(((1,), (1, 2), (1, 2, 3))),
    "same tail after another head": shapes(((1, 5, 5), (2, 5, 5))),
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_nodes_give_every_option_its_own_sum(example: Example) -> None:
    asked = {
        node.prompt: {token: next_token(node.prompt, token) for token in node.children} for node in trie_nodes(example)
    }
    expected = [
        sum(next_token(example.prompt + option[:i], token) for i, token in enumerate(option))
        for option in example.options
    ]
    assert option_logprobs(example, asked) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "count"),
    [("one token each", 1), ("two tokens each", 3), ("shared prefix", 3), ("one is a prefix of the other", 3)],
)
def test_shared_prefixes_are_asked_once_and_shorter_ones_first(name: str, count: int) -> None:
    nodes = trie_nodes(EXAMPLES[name])
    assert len(nodes) == count == len({node.prompt for node in nodes})
    assert [len(node.prompt) for node in nodes] == sorted(len(node.prompt) for node in nodes)
    assert all(len(set(node.children)) == len(node.children) for node in nodes)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_walks_take_each_node_once_and_follow_children(example: Example) -> None:
    walks = trie_walks(example)
    assert sorted(node.prompt for walk in walks for node in walk.nodes) == sorted(n.prompt for n in trie_nodes(example))
    assert walks[0].prompt == example.prompt
    for walk in walks:
        tokens = (*walk.forced, None)
        for i, (node, forced) in enumerate(zip(walk.nodes, tokens, strict=True)):
            assert node.prompt == walk.prompt + walk.forced[:i]
            assert forced is None or forced in node.children
            # What an engine reports: the token it continues with, and those asked for.
            assert set(node.children) <= {forced, *walk.asked}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("one token each", 1),
        ("two tokens each", 2),
        ("mixed", 2),
        ("shared prefix", 1),
        ("same tail after another head", 2),
    ],
)
def test_a_walk_ends_where_an_option_does(name: str, count: int) -> None:
    """The way through options that are one another's beginnings is one request."""
    assert len(trie_walks(EXAMPLES[name])) == count


def test_a_request_asks_no_more_than_the_engine_takes() -> None:
    """300 children of the prompt, and further ones down a walk of which no node alone is too large."""
    wide = shapes(tuple((i,) for i in range(300)))
    deep = shapes(tuple((1,) * depth + (100 * depth + i,) for depth in range(1, 4) for i in range(90)))
    for example, count in ((wide, 3), (deep, 3)):
        requests = requests_of(example)
        assert len(requests) == count and all(0 < len(walk.asked) <= MAX_ASKED for walk in requests)
        asked = {(node.prompt, child) for walk in requests for node in walk.nodes for child in node.children}
        assert asked == {(node.prompt, child) for node in trie_nodes(example) for child in node.children}
        for walk in requests:
            assert [n.prompt for n in walk.nodes] == [
                walk.prompt + walk.forced[:i] for i in range(len(walk.forced) + 1)
            ]


LOGPROBS = [(-1.0, -3.0, -6.0), (-0.5, -0.1, -9.0)]
SCORED = [
    Example(prompt=(1,), options=((1,), (2, 3), (4, 5, 6)), label=2),
    Example(prompt=(2,), options=((1,), (2, 3), (4, 5, 6)), label=1),
]
MEANS = torch.tensor([[-1.0, -1.5, -2.0], [-0.5, -0.05, -3.0]], dtype=torch.float64)


def test_candidates_is_the_cross_entropy_of_mean_token_logprobs() -> None:
    seen = observe(Score(), SCORED, LOGPROBS, tokens=11, seconds=0.5)
    expected = torch.nn.functional.cross_entropy(MEANS, torch.tensor([2, 1]), reduction="none")
    assert seen.losses == pytest.approx(expected.tolist())
    assert seen.weights == (1.0, 1.0) and seen.value == pytest.approx(float(expected.mean()))
    assert torch.tensor(seen.scores).allclose(MEANS.float()) and (seen.tokens, seen.seconds) == (11, 0.5)


def test_gold_is_the_mean_over_the_right_options_tokens() -> None:
    seen = observe(Score(loss="gold"), SCORED, LOGPROBS, tokens=11, seconds=0.5)
    assert seen.losses == pytest.approx((2.0, 0.05)) and seen.weights == (3.0, 2.0)
    assert seen.value == pytest.approx((6.0 + 0.1) / 5)  # tokens weigh alike, not examples


def test_cross_entropy_neither_overflows_nor_vanishes() -> None:
    assert cross_entropy((-1000.0, -2000.0), 1) == pytest.approx(1000.0)
    assert cross_entropy((800.0, 0.0), 0) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_spoils_its_own_example_only(bad: float) -> None:
    seen = observe(Score(), SCORED, [(bad, -3.0, -6.0), LOGPROBS[1]], tokens=1, seconds=0.0)
    assert math.isnan(seen.losses[0]) and math.isfinite(seen.losses[1]) and math.isnan(seen.value)
