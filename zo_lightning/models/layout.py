"""The trainable matrices of a model, read from its config alone."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig

from zo_lightning.core.types import Layout, MatrixSpec
from zo_lightning.errors import DataError


def load_config(folder: Path) -> PretrainedConfig:
    """The model's config, from local files only.

    Raises:
        DataError: if transformers cannot read it.
    """
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"`model.path`: cannot read {folder / 'config.json'}: {error}") from error


def linear_layout(folder: Path) -> Layout:
    """Every linear weight inside the decoder layers, in module order and with its Hugging Face name.

    The model is built on the meta device, so a 32B one costs no memory and no reading of weights.
    What lies outside the layers (embeddings, ``lm_head``, OPT's ``project_in`` and ``project_out``) stays out.

    Args:
        folder: a model folder with a ``config.json``.

    Raises:
        DataError: for a config that is no causal language model or has no linear layer.
    """
    config = load_config(folder)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise DataError(f"`model.path`: {folder} holds a {config.model_type}, which is no causal language model")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = tuple(
        MatrixSpec(name=name, rows=module.out_features, cols=module.in_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and ".layers." in name
    )
    if not matrices:
        raise DataError(
            f"`model.path`: the {config.model_type} in {folder} has no linear modules in `layers`; choose a Llama, "
            "Qwen3 or OPT model"
        )
    return Layout(model=str(folder), matrices=matrices, num_parameters=sum(p.numel() for p in model.parameters()))
