"""Adapters on CPU: products over runs of tokens instead of a gathered copy of the factors for each token.

vLLM's CPU fallback copies A and B once for every token, which makes a step with adapters cost two
to three times one without. Requests of one parameter point arrive together, so their tokens form
few contiguous runs; each run takes two plain products with the rank columns in use.

Shape suffixes: T tokens, I inputs, O outputs, C rank columns in use.
"""

from __future__ import annotations

from typing import Any

import torch

_columns = 0  # rank columns in use, the same in every slot


def set_columns(count: int) -> None:
    """Say how many leading rank columns of every slot are in use."""
    global _columns
    _columns = count


def token_runs(wrapper: Any) -> list[tuple[int, int, int]]:
    """Runs of the current batch as (slot, first token, last token + 1), without those that have no adapter."""
    starts, lengths, slots, *_ = wrapper.prefill_metadata
    return [
        (slot, start, start + length)
        for slot, start, length in zip(slots.tolist(), starts.tolist(), lengths.tolist(), strict=True)
        if slot >= 0
    ]


def add_lora_linear(
    wrapper: Any,
    output_TO: torch.Tensor,
    input_TI: torch.Tensor,
    right_stacked: tuple[torch.Tensor, ...],
    left_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    **_: Any,
) -> None:
    """``output += (input @ right.T) @ left.T`` for each run and each slice of a fused linear, in place.

    Args:
        wrapper: vLLM's adapter metadata; ``zo_runs`` holds the batch's runs.
        output_TO: the base linear's result, changed in place.
        input_TI: its input.
        right_stacked: for each slice, [slots, 1, max rank, I].
        left_stacked: for each slice, [slots, 1, O of the slice, max rank].
        scale: always 1 here: factors are written as they apply.
        output_slices: O of each slice.
    """
    for slot, start, end in wrapper.zo_runs:
        run_TI, offset = input_TI[start:end], 0
        for right, left, width in zip(right_stacked, left_stacked, output_slices, strict=True):
            hidden_TC = run_TI @ right[slot, 0, :_columns].T
            output_TO[start:end, offset : offset + width].addmm_(hidden_TC, left[slot, 0, :, :_columns].T)
            offset += width
