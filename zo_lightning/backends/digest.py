"""A digest of base weights that no changed bit escapes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch


def digest_weights(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over tensors with their names, types and shapes, in the order given.

    >>> one = digest_weights([("w", torch.tensor([1.0, 2.0]))])
    >>> one == digest_weights([("w", torch.tensor([2.0, 1.0]))])
    False
    """
    total = hashlib.sha256()
    for name, tensor in named:
        total.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
