"""Attention over a ragged batch: every token sees its own ancestors and no other sequence.

Registered with transformers under a name of its own, so that a model chooses it by its configuration and no other
model changes. The plan of a batch travels through the model's forward as a keyword argument.

Shape suffixes: T tokens, H heads, G key-value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from zo_lightning.backends.packed.ragged import Ragged, split

NAME = "zo_packed"
# Tokens of short sequences that share one masked product. On CPU 64 beat 48, 96, 128 and 192, one product for each
# sequence, and one padded product for all.
_TILE = {"cpu": 64, "cuda": 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Consecutive tokens of whole sequences with a mask [T, T] that is added; without one, a single causal sequence."""

    tokens: slice
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a batch attends: by flash attention over sequences where there is any, or tile by tile."""

    tiles: tuple[Tile, ...] = ()
    bounds: torch.Tensor | None = None
    longest: int = 0


def plan(batch: Ragged, dtype: torch.dtype) -> Plan:
    """The plan of a batch for a model of type ``dtype``."""
    device = batch.ids.device
    if _has_varlen(device, dtype) and not any(tree.branches for tree in batch.trees):
        bounds = torch.tensor(batch.bounds, dtype=torch.int32, device=device)
        return Plan(bounds=bounds, longest=max(batch.lengths))
    return Plan(tiles=tuple(_tile(batch, own, dtype) for own in split(batch.lengths, _TILE[device.type])))


def packed_attention(
    module: torch.nn.Module,
    query_1HTD: torch.Tensor,
    key_1GTD: torch.Tensor,
    value_1GTD: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    zo_plan: Plan,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer; returns [1, T, H, D]."""
    if zo_plan.bounds is not None:
        return _varlen(query_1HTD, key_1GTD, value_1GTD, scaling, zo_plan.bounds, zo_plan.longest), None
    grouped = query_1HTD.shape[1] != key_1GTD.shape[1]
    output_1THD = torch.empty_like(query_1HTD.transpose(1, 2), memory_format=torch.contiguous_format)
    for tile in zo_plan.tiles:
        output_1THD[:, tile.tokens] = scaled_dot_product_attention(
            query_1HTD[:, :, tile.tokens],
            key_1GTD[:, :, tile.tokens],
            value_1GTD[:, :, tile.tokens],
            attn_mask=tile.mask,
            is_causal=tile.mask is None,
            scale=scaling,
            enable_gqa=grouped,
        ).transpose(1, 2)
    return output_1THD, None


def register() -> None:
    """Make the name known to transformers. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)


def _has_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has flash attention over sequences of different lengths for this device and type."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    return hasattr(torch.nn.attention, "varlen") and torch.cuda.get_device_capability(device) >= (8, 0)


def _varlen(
    query_1HTD: torch.Tensor,
    key_1GTD: torch.Tensor,
    value_1GTD: torch.Tensor,
    scaling: float,
    bounds: torch.Tensor,
    longest: int,
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    output_THD = varlen_attn(
        query_1HTD[0].transpose(0, 1),
        key_1GTD[0].transpose(0, 1),
        value_1GTD[0].transpose(0, 1),
        bounds,
        bounds,
        longest,
        longest,
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=query_1HTD.shape[1] != key_1GTD.shape[1],
    )
    assert isinstance(output_THD, torch.Tensor)
    return output_THD[None]


def _tile(batch: Ragged, own: slice, dtype: torch.dtype) -> Tile:
    trees = batch.trees[own]
    tokens = slice(batch.bounds[own.start], batch.bounds[own.stop])
    if len(trees) == 1 and not trees[0].branches:
        return Tile(tokens=tokens, mask=None)
    lengths = torch.tensor([len(tree.tokens) for tree in trees])
    sequence_T = torch.arange(len(trees)).repeat_interleave(lengths)
    sees_TT = (sequence_T[:, None] == sequence_T).tril()
    for tree, start in zip(trees, batch.bounds[own], strict=True):
        if tree.branches:
            _branch(sees_TT, tree.parents, start - tokens.start, tree.logits_from + 1)
    # Added, not boolean: SDPA would convert it in every layer.
    mask_TT = torch.zeros(sees_TT.shape, dtype=dtype).masked_fill_(~sees_TT, float("-inf"))
    return Tile(tokens=tokens, mask=mask_TT.to(batch.ids.device))


def _branch(sees_TT: torch.Tensor, parents: tuple[int, ...], start: int, first: int) -> None:
    """Let each option token see itself and what its parent sees."""
    for token, parent in enumerate(parents, start=start + first):
        sees_TT[token] = sees_TT[start + parent]
        sees_TT[token, token] = True
