"""The trainable matrices of a model, read from its config alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from zo_lightning.core.types import Layout, MatrixSpec
from zo_lightning.errors import DataError

Trainable = Literal["linear", "all"]


def load_config(folder: Path) -> PretrainedConfig:
    """The model's config, from local files only.

    Raises:
        DataError: if transformers cannot read it.
    """
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"`model.path`: cannot read {folder / 'config.json'}: {error}") from error


def trainable_layout(folder: Path, trainable: Trainable = "linear") -> Layout:
    """What a run changes of a model, in module order and with Hugging Face names.

    The model is built on the meta device, so a 32B one costs no memory and no reading of weights.

    Args:
        folder: a model folder with a ``config.json``.
        trainable: see ``layout_of``.

    Raises:
        DataError: for a config that is no causal language model or has no linear layer.
    """
    config = load_config(folder)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise DataError(f"`model.path`: {folder} holds a {config.model_type}, which is no causal language model")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layout = layout_of(model, str(folder), trainable)
    if not layout.matrices:
        raise DataError(
            f"`model.path`: the {config.model_type} in {folder} has no linear modules in `layers`; choose a Llama, "
            "Qwen3 or OPT model"
        )
    return layout


def layout_of(model: PreTrainedModel, name: str, trainable: Trainable = "linear") -> Layout:
    """The layout of a model that is there already.

    Args:
        model: on any device.
        name: what the layout calls it.
        trainable: ``linear`` is every linear weight inside the decoder layers: what lies outside them (embeddings,
            ``lm_head``, OPT's ``project_in`` and ``project_out``) stays as it is. ``all`` is every parameter, tied ones
            once: those of one dimension (norms, biases) are vectors.
    """
    matrices = {"linear": _linears, "all": _parameters}[trainable](model)
    return Layout(model=name, matrices=tuple(matrices), num_parameters=sum(p.numel() for p in model.parameters()))


def _linears(model: PreTrainedModel) -> Iterator[MatrixSpec]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and ".layers." in name:
            yield MatrixSpec(name=name, rows=module.out_features, cols=module.in_features)


def _parameters(model: PreTrainedModel) -> Iterator[MatrixSpec]:
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            yield MatrixSpec(name=name, rows=len(parameter), cols=1, vector=True)
        else:
            rows, cols = parameter.shape
            yield MatrixSpec(name=name.removesuffix(".weight"), rows=rows, cols=cols)
