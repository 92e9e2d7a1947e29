"""Adapters on CPU: products over runs of tokens instead of a gathered copy of the factors for each token.

vLLM's CPU fallback copies A and B once for every token, which makes a step with adapters cost two
to three times one without. Requests of one parameter point arrive together, so their tokens form
few contiguous runs; each run takes two products with the rank columns in use, whatever the number
of matrices that the engine fused into the linear.

Shape suffixes: S slots, T tokens, I inputs, O outputs, R rank columns, K = R * fused slices.
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


class PackedFactors:
    """The factors of one fused linear, laid out so that the columns in use are a prefix.

    Rank column ``r`` of slice ``j`` of ``n`` is packed column ``r * n + j``; the left factor is
    block-diagonal over the slices' output rows.

    Args:
        layer: vLLM's adapter layer; its stacked tensors become views of the packed ones.
        wrapper: vLLM's adapter metadata, whose ``zo_runs`` are the batch's runs.
    """

    def __init__(self, layer: Any, wrapper: Any) -> None:
        right, left = layer.lora_a_stacked, layer.lora_b_stacked
        num_slots, _, rank, inputs = right[0].shape
        self._wrapper, self._num_slices = wrapper, len(right)
        self._right_SKI = right[0].new_zeros(num_slots, rank * len(right), inputs)
        self._left_SOK = left[0].new_zeros(num_slots, sum(part.shape[2] for part in left), rank * len(left))
        rights, lefts, row = [], [], 0
        for j, part in enumerate(left):
            rows = slice(row, row + part.shape[2])
            rights.append(self._right_SKI[:, j :: len(right)].unsqueeze(1))
            lefts.append(self._left_SOK[:, rows, j :: len(left)].unsqueeze(1))
            row = rows.stop
        layer.lora_a_stacked, layer.lora_b_stacked = tuple(rights), tuple(lefts)

    def add(self, input_TI: torch.Tensor, output_TO: torch.Tensor) -> torch.Tensor:
        """``output += (input @ right.T) @ left.T`` for each run, in place."""
        used = _columns * self._num_slices
        for slot, start, end in self._wrapper.zo_runs:
            hidden_TK = input_TI[start:end] @ self._right_SKI[slot, :used].T
            output_TO[start:end].addmm_(hidden_TK, self._left_SOK[slot, :, :used].T)
        return output_TO
