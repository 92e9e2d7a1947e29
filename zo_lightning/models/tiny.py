"""Tiny models with random weights and a byte-level tokenizer, made locally: for tests, not for quality.

Three layers, four heads of 32, about half a million parameters. The weights come from the counter-based
generator, so every machine makes the same bits and no random state is touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from zo_lightning.core import rng
from zo_lightning.models.folder import write_model

NUM_BYTES = 5_000_000

_SEED = 0
_ROLE_WEIGHTS = 1 << 16  # beyond the roles of a run, so that no step draws the numbers that made the model
_VOCABULARY = 384
_SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
# Words that are one token each, so that both one-token and longer answer options occur.
_WORDS = ("great", "terrible", "good", "bad", "Yes", "No", "Maybe", "yes", "no", "It", "was", "the", "a", "is", "and")


def _config(name: str) -> PretrainedConfig:
    shape: dict[str, Any] = {
        "vocab_size": _VOCABULARY,
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    grouped: dict[str, Any] = {"intermediate_size": 256, "num_key_value_heads": 2, "head_dim": 32}
    match name:
        case "tiny-llama":
            return LlamaConfig(**shape, **grouped, tie_word_embeddings=True)
        case "tiny-qwen3":
            return Qwen3Config(**shape, **grouped, tie_word_embeddings=False)
        case "tiny-opt":
            return OPTConfig(**shape, ffn_dim=256, word_embed_proj_dim=128)
    raise ValueError(name)


def build(name: str, folder: Path) -> None:
    """Write a tiny model into ``folder``: config, fp32 safetensors and tokenizer.

    Args:
        name: ``tiny-llama`` (tied embeddings), ``tiny-qwen3`` (untied) or ``tiny-opt``.
        folder: an existing folder.
    """
    config = _config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    architecture = type(model).__name__
    write_model(folder, config=config, architecture=architecture, weights=_weights(model), tokenizer=_tokenizer())


def _weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Normals scaled by fan-in, so that activations and logits have about unit variance and depend on the prompt."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    counts = tuple(shape.numel() for shape in shapes.values())
    drawn = rng.normals(_SEED, _ROLE_WEIGHTS, step=0, index=0, counts=counts).split(counts)
    weights = {}
    for (name, shape), normals in zip(shapes.items(), drawn, strict=True):
        if len(shape) == 2:
            weights[name] = normals.view(shape) * shape[1] ** -0.5
        else:
            weights[name] = (0.0 if name.endswith("bias") else 1.0) + 0.1 * normals
    return weights


def _tokenizer() -> PreTrainedTokenizerFast:
    """All 256 bytes, and a merge for each prefix of `` word``: any text round-trips, and nothing is trained."""
    space = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(" ")[0][0]
    tokens = [*_SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: dict[tuple[str, str], None] = {}
    for word in _WORDS:
        for end in range(len(word)):
            merges[(space + word[:end], word[end])] = None
    tokens += ["".join(pair) for pair in merges]
    model = models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=list(merges))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, bos, eos = _SPECIAL_TOKENS
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos)
