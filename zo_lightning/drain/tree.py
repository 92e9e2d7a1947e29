"""A checkpoint's containers and its tensors apart, so that tensors travel by copy and the rest as a few bytes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import torch


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a tensor in a checkpoint: its number among those that travel, or a drained one by role and number."""

    role: str
    index: int
    shape: tuple[int, ...]


Known = Mapping[tuple[int, int], tuple[str, int]]
"""Role and number of each drained tensor by address and number of elements."""


def split(tree: Any, known: Known) -> tuple[Any, list[torch.Tensor]]:
    """Replace tensors by references.

    Args:
        tree: nested mappings, lists and tuples; mappings of an unknown kind become plain ones.
        known: drained tensors, which are not among those returned.

    Returns:
        The tree with a ``Ref`` in place of each tensor, and the tensors, flat, that must travel.

    Examples:
        >>> split({"a": [torch.ones(2), 3]}, {})
        ({'a': [Ref(role='rest', index=0, shape=(2,)), 3]}, [tensor([1., 1.])])
    """
    travelling: list[torch.Tensor] = []

    def walk(node: Any) -> Any:
        if isinstance(node, torch.Tensor):
            role, index = known.get((node.data_ptr(), node.numel()), ("rest", len(travelling)))
            if role == "rest":
                travelling.append(node.detach().reshape(-1))
            return Ref(role, index, tuple(node.shape))
        return _mapped(node, walk)

    return walk(tree), travelling


def fill(tree: Any, tensors: Mapping[str, Sequence[torch.Tensor]]) -> Any:
    """Put tensors, flat, in place of references: the inverse of ``split``.

    Args:
        tree: with ``Ref``.
        tensors: by role and number.

    Examples:
        >>> fill(*(lambda tree, tensors: (tree, {"rest": tensors}))(*split({"a": torch.ones(1)}, {})))
        {'a': tensor([1.])}
    """

    def walk(node: Any) -> Any:
        if isinstance(node, Ref):
            return tensors[node.role][node.index].view(node.shape)
        return _mapped(node, walk)

    return walk(tree)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """All tensors of a tree in its order."""
    return split(tree, {})[1]


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Digest of the bits of some tensors on CPU, by CRC32C of each; their shapes do not count.

    Examples:
        >>> digest([torch.zeros(2)]) == digest([torch.zeros(3)])
        False
    """
    total = hashlib.sha256()
    for tensor in tensors:
        data = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        total.update(f"{tensor.dtype} {tensor.numel()} {google_crc32c.value(data):08x};".encode())
    return total.hexdigest()[:32]


def _mapped(node: Any, walk: Any) -> Any:
    if isinstance(node, Mapping):
        kind = OrderedDict if type(node) is OrderedDict else dict
        return kind((key, walk(value)) for key, value in node.items())
    if type(node) in (list, tuple):
        return type(node)(map(walk, node))
    return node
