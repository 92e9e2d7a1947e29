"""Makes vLLM's V1 model runner continue a request with given tokens, so that it answers at each of them.

Decoding computes one token a step and no prefix again, and log-probabilities are taken before this comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from zo_lightning.backends.vllm.scoring import FORCED_KEY


class ForcedTokens(LogitsProcessor):
    """Puts a request's next given token above all others."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._running: dict[int, tuple[Sequence[int], Sequence[int]]] = {}  # row: tokens to come, tokens so far

    def is_argmax_invariant(self) -> bool:
        """It changes which token is the most likely one."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests as they enter, leave and move."""
        process_dict_updates(self._running, batch_update, _forced)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Change logits, `[requests, vocabulary]`, in place."""
        due = [
            (row, tokens[len(so_far)]) for row, (tokens, so_far) in self._running.items() if len(so_far) < len(tokens)
        ]
        if due:
            rows, tokens = zip(*due, strict=True)
            logits[list(rows), list(tokens)] = torch.inf
        return logits


def _forced(
    params: SamplingParams, prompt: list[int] | None, so_far: list[int]
) -> tuple[Sequence[int], Sequence[int]] | None:
    tokens = (params.extra_args or {}).get(FORCED_KEY)
    return (tokens, so_far) if tokens else None
