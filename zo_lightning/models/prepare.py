"""Turns a model's configuration into a folder that every backend can load."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from zo_lightning.core.types import Layout
from zo_lightning.errors import ConfigError, DataError
from zo_lightning.models import hub, smollm2, tiny
from zo_lightning.models.cache import build_once
from zo_lightning.models.folder import missing_parts
from zo_lightning.models.layout import Trainable, load_config, trainable_layout

Source = Literal["hub", "smollm2", "tiny-llama", "tiny-qwen3", "tiny-opt"]

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_RECIPE = 1  # part of cached names: raise it when a conversion or a tiny model changes


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model on the local disk. ``max_length`` is its context in tokens."""

    name: str
    folder: Path
    layout: Layout
    max_length: int


def prepare_model(
    *,
    name: str,
    path: str | None,
    source: Source,
    revision: str | None = None,
    max_length: int | None = None,
    cache_dir: str | None = None,
    trainable: Trainable = "linear",
) -> PreparedModel:
    """Have the model on the local disk, check that it is whole, and read its layout.

    Args:
        name: what the run calls the model.
        path: a local folder or a hub name (``organisation/name``); None lets ``source`` decide.
        source: where the weights come from when there is no ``path``: a package, or made locally.
        revision: branch, tag or commit of a hub name.
        max_length: upper limit of the context in tokens; None takes the model's own.
        cache_dir: where converted and tiny models are kept (default: ``ZO_LIGHTNING_CACHE``, else
            ``~/.cache/zo_lightning``). Downloads stay in the hub's own cache.
        trainable: what the layout lists: ``linear`` or ``all``.

    Raises:
        DataError: if the model cannot be had or its folder is not whole.
        ConfigError: for a source or length that cannot be.
    """
    if max_length is not None and max_length < 1:
        raise ConfigError(f"`model.max_length` must be at least 1, not {max_length}")
    folder = _find(path, revision) if path else _make(name, source, cache_dir)
    missing = missing_parts(folder)
    if missing:
        raise DataError(
            f"model `{name}`: the folder {folder} lacks {', '.join(missing)}. Point `model.path=/folder` at a "
            "complete copy of a Hugging Face model"
        )
    context = load_config(folder).max_position_embeddings
    layout = trainable_layout(folder, trainable)
    return PreparedModel(name=name, folder=folder, layout=layout, max_length=min(context, max_length or context))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder, from local files only."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def load_model(folder: str | Path, *, dtype: str, device: torch.device) -> Any:
    """A transformers model without gradients."""
    transformers_logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
    return model.to(device).eval().requires_grad_(False)


def _find(path: str, revision: str | None) -> Path:
    """The folder of ``model.path``; whatever does not exist here and reads like a hub name is fetched."""
    folder = Path(path).expanduser().absolute()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DataError(f"`model.path`={path} is a file; point it at the folder that holds the model's config.json")
    if HUB_NAME.fullmatch(path):
        return hub.fetch(path, revision)
    raise DataError(
        f"`model.path`={path}: there is no such folder. Give a local folder with a Hugging Face model, or a hub name "
        "such as Qwen/Qwen3-0.6B"
    )


def _make(name: str, source: Source, cache_dir: str | None) -> Path:
    """The folder of a model that this machine makes itself."""
    match source:
        case "smollm2":
            build, num_bytes = smollm2.convert, smollm2.NUM_BYTES
        case "tiny-llama" | "tiny-qwen3" | "tiny-opt":
            build, num_bytes = partial(tiny.build, source), tiny.NUM_BYTES
        case "hub":
            raise ConfigError(f"model `{name}` needs `model.path`: a hub name or a local folder")
        case _:
            raise ConfigError(f"`model.source` must be one of {', '.join(get_args(Source))}, not {source}")
    return build_once(f"{source}-{_RECIPE}", build, num_bytes=num_bytes, cache_dir=cache_dir)
