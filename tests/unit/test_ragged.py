"""Trees, ragged batches and their attention, held against one plain sequence for each option."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from zo_lightning.backends.packed.attention import packed_attention, plan
from zo_lightning.backends.packed.ragged import ragged, split
from zo_lightning.backends.packed.tree import tree_of
from zo_lightning.core.types import Example

CPU = torch.device("cpu")


def example(*options: tuple[int, ...], prompt: tuple[int, ...] = (7, 8, 9)) -> Example:
    return Example(prompt=prompt, options=options, label=0)


EXAMPLES = {
    "one token each": example((1,), (2,), (3,)),
    "two tokens each": example((1, 2), (3, 4)),
    "mixed": example((1,), (2, 3), (4, 5, 6)),
    "shared prefix": example((1, 2, 3), (1, 2, 4), (1, 5)),
    "one is a prefix of the other": example((1,), (1, 2), (1, 2, 3)),
    "same tail after another head": example((1, 5, 5), (2, 5, 5)),
    "one option": example((1, 2, 3)),
    "a prompt of one token": example((1, 2), (3,), prompt=(7,)),
    "a long prompt": example((1, 2), (3, 4), prompt=tuple(range(100))),
}


@pytest.mark.parametrize("asked", EXAMPLES.values(), ids=EXAMPLES)
def test_every_scored_token_follows_its_prompt_and_option(asked: Example) -> None:
    tree = tree_of(asked)
    parents = [*range(-1, tree.logits_from), *tree.parents]
    for option, scored in zip(asked.options, tree.scored, strict=True):
        assert tuple(token for _, token in scored) == option
        for depth, (place, _) in enumerate(scored):
            path = []
            while place >= 0:
                assert tree.positions[place] == len(asked.prompt) + depth - 1 - len(path)
                path.append(tree.tokens[place])
                place = parents[place]
            assert tuple(reversed(path)) == asked.prompt + option[:depth]
    inner = {option[:depth] for option in asked.options for depth in range(1, len(option))}
    assert len(tree.tokens) == len(asked.prompt) + len(inner)  # nothing is computed twice, and no last token


def test_a_batch_reads_logits_where_options_follow() -> None:
    examples = [*EXAMPLES.values()]
    batch = ragged([tree_of(each) for each in examples], CPU)
    assert batch.ids.shape == batch.positions.shape == (batch.bounds[-1],)
    assert sum(batch.logit_counts) == len(batch.logits)
    numbers = iter(range(1, 1000))  # a value of its own for every scored token
    values = [float(next(numbers)) for _ in batch.scored_ids]
    sums = list(batch.option_logprobs(values))
    assert [len(of) for of in sums] == [len(each.options) for each in examples]
    assert sum(map(sum, sums)) == sum(values)
    rows = batch.logits[batch.scored_rows]
    first_tokens = [option[0] for each in examples for option in each.options]
    expected = [start + len(each.prompt) - 1 for each, start in zip(examples, batch.bounds, strict=False)]
    firsts = [row for row, token in zip(rows.tolist(), batch.scored_ids.tolist(), strict=True) if row in expected]
    assert len(firsts) == len(first_tokens)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)], ids=str)
def test_attention_is_that_of_every_path_alone(heads: tuple[int, int]) -> None:
    examples = [*EXAMPLES.values()]
    batch = ragged([tree_of(each) for each in examples], CPU)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, number, batch.bounds[-1], 8) for number in (heads[0], heads[1], heads[1]))
    chosen = plan(batch, torch.float32)
    assert 1 < len(chosen.tiles) < len(examples)
    output, _ = packed_attention(torch.nn.Module(), query, key, value, None, scaling=0.3, zo_plan=chosen)
    for tree, start in zip(batch.trees, batch.bounds, strict=False):
        parents = [*range(-1, tree.logits_from), *tree.parents]
        for token in range(len(tree.tokens)):
            path = [token]
            while parents[path[-1]] >= 0:
                path.append(parents[path[-1]])
            places = torch.tensor(path[::-1]) + start
            alone = scaled_dot_product_attention(
                query[:, :, places[-1:]], key[:, :, places], value[:, :, places], scale=0.3, enable_gqa=True
            )
            assert torch.allclose(output[:, start + token], alone[:, :, 0], atol=1e-5)


def test_batches_are_split_between_sequences() -> None:
    lengths = [5, 1, 9, 2, 2, 2, 30, 1]
    for limit in (1, 4, 10, 100):
        parts = split(lengths, limit)
        assert [length for part in parts for length in lengths[part]] == lengths
        assert all(sum(lengths[part]) <= limit or part.stop - part.start == 1 for part in parts)
