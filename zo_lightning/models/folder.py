"""Model folders in the Hugging Face format: writing one, and what a whole one has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PretrainedConfig, PreTrainedTokenizerBase

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def write_model(
    folder: Path,
    *,
    config: PretrainedConfig,
    architecture: str,
    weights: Mapping[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Write a model that transformers and vLLM load: config, fp32 safetensors (tied weights once), tokenizer."""
    config.architectures = [architecture]
    config.dtype = torch.float32
    config.save_pretrained(folder)
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)


def missing_parts(folder: Path) -> list[str]:
    """Names of what a model folder lacks; empty for a complete one.

    Examples:
        >>> missing_parts(Path("/nowhere"))[:2]
        ['config.json', 'weights (*.safetensors or *.bin)']
    """
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("config.json")
    weights = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    if not weights:
        missing.append("weights (*.safetensors or *.bin)")
    else:
        missing += _missing_shards(folder, weights)
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        missing.append("a tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
    return missing


def _missing_shards(folder: Path, weights: list[Path]) -> list[str]:
    """Files that the index of the format at hand names: a repository may index a second format, not downloaded."""
    present = {file.name for file in weights}
    named: set[str] = set()
    for index in folder.glob(f"*{weights[0].suffix}.index.json"):
        named.update(json.loads(index.read_text())["weight_map"].values())
    return sorted(named - present)
