"""A PEFT LoRA adapter: ``B = P`` and ``A = V^T`` of every matrix, so that ``B A`` is what the run has learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import AutoConfig

from zo_lightning.backends.vllm.internals import ADAPTER_RANKS
from zo_lightning.errors import ConfigError
from zo_lightning.export.card import adapter_card
from zo_lightning.export.learned import Learned


def served_rank(rank: int) -> int | None:
    """The smallest ``--max-lora-rank`` that vLLM takes and that has room for an adapter; None beyond the largest.

    Examples:
        >>> [served_rank(rank) for rank in (1, 2, 6, 12, 64, 600)]
        [1, 8, 8, 16, 64, None]
    """
    return next((accepted for accepted in ADAPTER_RANKS if accepted >= rank), None)


def write_adapter(folder: Path, learned: Learned) -> dict[str, Any]:
    """Write ``adapter_model.safetensors``, ``adapter_config.json`` and a model card.

    Args:
        folder: an existing, empty folder.
        learned: what to write.

    Returns:
        What was written, as plain values.

    Raises:
        ConfigError: for what an adapter cannot hold: trained vectors, and factors merged into the base.
    """
    _check_adapter(learned)
    tensors = {}
    for matrix, left_OR, right_IR in learned.factors():
        tensors[f"base_model.model.{matrix.name}.lora_A.weight"] = right_IR.T.contiguous()
        tensors[f"base_model.model.{matrix.name}.lora_B.weight"] = left_OR.contiguous()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(adapter_config(learned), indent=2) + "\n")
    stored = AutoConfig.from_pretrained(learned.base.folder, local_files_only=True).dtype or "auto"
    about = learned.about() | {
        "max_lora_rank": served_rank(learned.rank),
        "dtype": str(stored).removeprefix("torch."),
    }
    (folder / "README.md").write_text(adapter_card(about))
    return about


def _check_adapter(learned: Learned) -> None:
    if learned.bank.layout.has_vectors:
        raise ConfigError(
            "`model.trainable=all` has trained norms, biases and embeddings, which an adapter cannot hold: export with "
            "`format=merged`"
        )
    if learned.bank.num_merged:
        raise ConfigError(
            "`bank.policy=merge` has written full slots into the base weights, which an adapter of the base cannot "
            "hold: export with `format=merged`"
        )


def adapter_config(learned: Learned) -> dict[str, Any]:
    """PEFT's configuration: full module names hit the bank's matrices and no others; alpha = r is a scale of 1."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": learned.base.name,
        "revision": learned.base.revision,
        "r": learned.rank,
        "lora_alpha": learned.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [matrix.name for matrix in learned.bank.layout.matrices],
        "inference_mode": True,
    }
