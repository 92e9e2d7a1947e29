"""A digest of a model folder's weights as they are stored: the same for every backend, type and way of sharding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import safe_open


def weights_digest(folder: Path) -> str:
    """SHA-256 over all stored tensors in the order of their names, each with its name, type and shape.

    Args:
        folder: a complete model folder, with safetensors or, without any, ``pytorch_model*.bin``.
    """
    total = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        for line in sorted(pool.map(_line, _stored(folder))):
            total.update(line.encode())
    return total.hexdigest()


def _stored(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  not a mapping
                yield name, tensors.get_tensor(name)
    for file in [] if files else sorted(folder.glob("pytorch_model*.bin")):
        yield from torch.load(file, map_location="cpu", mmap=True, weights_only=True).items()


def _line(stored: tuple[str, torch.Tensor]) -> str:
    name, tensor = stored
    content = hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return f"{name} {tensor.dtype} {tuple(tensor.shape)} {content.hexdigest()}\n"
