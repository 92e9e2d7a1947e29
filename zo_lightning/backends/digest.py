"""Digests of base weights and of factors that no changed bit escapes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch


def digest_weights(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over tensors with their names, types and shapes, in the order given.

    Examples:
        >>> one = digest_weights([("w", torch.tensor([1.0, 2.0]))])
        >>> one == digest_weights([("w", torch.tensor([2.0, 1.0]))])
        False
    """
    total = hashlib.sha256()
    for name, tensor in named:
        total.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def digest_factors(snapshot: dict[str, Any]) -> str:
    """SHA-256 over a backend's snapshot: version, stages, left factors, the update's state, merged weights.

    Args:
        snapshot: of any backend.
    """
    state = [(f"state.{i}.{name}", part[name]) for i, part in enumerate(snapshot["state"]) for name in sorted(part)]
    merged = [(f"merged.{i}", weight) for i, weight in enumerate(snapshot.get("merged", ()))]
    tensors = digest_weights([("left", snapshot["left"]), *state, *merged])
    head = (snapshot["version"], snapshot["num_merged"], [tuple(stage) for stage in snapshot["slots"]])
    return hashlib.sha256(f"{head} {tensors}".encode()).hexdigest()
