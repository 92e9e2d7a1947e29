"""How a batch becomes rows of tokens: one row for each answer option, each next-token question, or each request.

Shape suffixes: B rows, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zo_lightning.backends.vllm.scoring import requests_of, trie_nodes
from zo_lightning.core.types import Example

Rows = list[tuple[int, ...]]
_MULTIPLE = 8  # released LoZO pads to a multiple of this


@dataclass(frozen=True, slots=True)
class Load:
    """What a forward pass computes: tokens through the layers, and rows of logits."""

    tokens: int
    scored: int


def candidate_rows(examples: Sequence[Example]) -> Rows:
    """Prompt and option, for every option: what released LoZO runs.

    Examples:
        >>> candidate_rows([Example(prompt=(1, 2), options=((3,), (4, 5)), label=0)])
        [(1, 2, 3), (1, 2, 4, 5)]
    """
    return [example.prompt + option for example in examples for option in example.options]


def node_rows(examples: Sequence[Example]) -> Rows:
    """Rows that end where a next token is asked: one for each inner node of the trie of an example's options.

    Examples:
        >>> node_rows([Example(prompt=(1, 2), options=((3,), (4, 5)), label=0)])
        [(1, 2), (1, 2, 4)]
    """
    return [node.prompt for example in examples for node in trie_nodes(example)]


def request_rows(examples: Sequence[Example]) -> Rows:
    """What an engine on this machine computes for its requests: prompts, with the tokens that are forced on a CPU.

    Examples:
        >>> request_rows([Example(prompt=(1, 2), options=((3,), (4,)), label=0)])  # the prompt is enough
        [(1, 2)]
    """
    return [walk.prompt + walk.forced for example in examples for walk in requests_of(example)]


def padded_length(rows: Rows) -> int:
    """Positions of a padded row.

    Examples:
        >>> padded_length([(1, 2, 3), (1,)])
        8
    """
    return -(-max(map(len, rows)) // _MULTIPLE) * _MULTIPLE


def padded_load(rows: Rows) -> Load:
    """What released LoZO computes for these rows: every position of every row, with its logits.

    Examples:
        >>> padded_load([(1, 2, 3), (1,)])
        Load(tokens=16, scored=16)
    """
    positions = len(rows) * padded_length(rows)
    return Load(positions, positions)


def real_load(examples: Sequence[Example]) -> Load:
    """The least that answers a batch at one point: each token of a prompt's trie once, logits where options branch.

    Examples:
        >>> real_load([Example(prompt=(1, 2), options=((3,), (4, 5)), label=0)])
        Load(tokens=3, scored=2)
    """
    nodes = [len(trie_nodes(example)) for example in examples]
    return Load(sum(len(e.prompt) + n - 1 for e, n in zip(examples, nodes, strict=True)), sum(nodes))


def left_padded(rows: Rows, device: torch.device) -> dict[str, torch.Tensor]:
    """Inputs of a transformers model: ids, mask and positions, padded on the left so that rows end together."""
    length = padded_length(rows)
    ids_BT = torch.zeros(len(rows), length, dtype=torch.long)
    mask_BT = torch.zeros_like(ids_BT)
    for i, row in enumerate(rows):
        ids_BT[i, length - len(row) :] = torch.tensor(row)
        mask_BT[i, length - len(row) :] = 1
    positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT, "position_ids": positions_BT}
    return {name: tensor.to(device) for name, tensor in inputs.items()}
