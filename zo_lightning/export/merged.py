"""A whole model with ``W + P V^T`` in its weights: summed in float32, rounded once to the type of the stored base."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from zo_lightning.export.card import merged_card
from zo_lightning.export.learned import Learned
from zo_lightning.models import load_tokenizer


@torch.no_grad()
def write_merged(folder: Path, learned: Learned) -> dict[str, Any]:
    """Write a model folder that transformers and vLLM load: config, weights, tokenizer and a model card.

    Args:
        folder: an existing, empty folder.
        learned: what to write; weights that a ``merge`` has written take the place of the base's.

    Returns:
        What was written, as plain values.
    """
    base = learned.base.folder
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype="auto", local_files_only=True)
    for (matrix, left_OR, right_IR), start in zip_longest(learned.factors(), learned.merged):
        weight = model.get_parameter(matrix.parameter)
        weight.copy_((weight if start is None else start).float() + (left_OR @ right_IR.T).view_as(weight))
    model.save_pretrained(folder)
    load_tokenizer(base).save_pretrained(folder)
    about = learned.about() | {"dtype": str(model.dtype).removeprefix("torch.")}
    (folder / "README.md").write_text(merged_card(about))
    return about
