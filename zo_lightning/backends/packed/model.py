"""A transformers model that scores trees of tokens, each at a parameter point of its own.

Shape suffixes: T tokens, S tokens whose logits are needed, K scored continuations, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zo_lightning.backends.packed import attention
from zo_lightning.backends.packed.factors import Factors
from zo_lightning.backends.packed.modules import install
from zo_lightning.backends.packed.ragged import Ragged, ragged, split
from zo_lightning.backends.packed.tree import Tree
from zo_lightning.backends.packed.weights import can_prepack
from zo_lightning.core.types import Layout, Point
from zo_lightning.errors import EngineError

MODEL_TYPES = ("llama", "opt", "qwen3")  # others may ask more of an attention than a mask: windows, sinks, caps


class PackedModel:
    """A model whose trained modules are replaced by those that add factors.

    Args:
        model: a causal language model; it belongs to this object from now on.
        layout: what is trained.
        factors: of the points.
        max_tokens: of one forward pass.

    Raises:
        EngineError: for a model of another kind.
    """

    def __init__(self, model: Any, layout: Layout, factors: Factors, *, max_tokens: int) -> None:
        if model.config.model_type not in MODEL_TYPES:
            raise EngineError(
                f"`backend=packed` runs {', '.join(MODEL_TYPES)}, not {model.config.model_type}: choose `backend=vllm` "
                "or `backend=dense`"
            )
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self._model, self._factors, self._max_tokens = model.eval().requires_grad_(False), factors, max_tokens
        self._device, self._dtype = model.device, model.dtype
        self.weights = install(model, layout, factors, prepack=can_prepack(model.device, model.dtype))

    @torch.inference_mode()
    def score(self, trees: Sequence[Tree], points: Sequence[Point] | None = None) -> list[tuple[float, ...]]:
        """Log-probability of every option of every tree, in as many passes as ``max_tokens`` asks for.

        Args:
            trees: what to score.
            points: of each tree; None is the base alone.
        """
        answers: list[tuple[float, ...]] = []
        for part in split([len(tree.tokens) for tree in trees], self._max_tokens):
            batch = ragged(trees[part], self._device)
            logprobs_K = self._logprobs(batch, points[part] if points else None)
            answers += batch.option_logprobs(logprobs_K.tolist())
        return answers

    def _logprobs(self, batch: Ragged, points: Sequence[Point] | None) -> torch.Tensor:
        """Of all scored continuations, float32 [K]."""
        self._factors.take(points, batch.lengths)
        hidden = self._model.model(
            input_ids=batch.ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            zo_plan=attention.plan(batch, self._dtype),
        ).last_hidden_state
        self._factors.take(points, batch.logit_counts)
        logits_SV = self._model.lm_head(hidden[0, batch.logits]).float()
        return logits_SV[batch.scored_rows, batch.scored_ids] - logits_SV.logsumexp(-1)[batch.scored_rows]
