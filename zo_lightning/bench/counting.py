"""Counting the bytes that torch operations move: those of every tensor read and written, on the meta device too."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NAMES = {
    "randn": "draw",
    "mm": "multiply U V^T",
    "addmm": "add U V^T",
    "mul": "scale",
    "add": "add",
    "sub": "subtract",
    "copy": "write",
    "fill": "write",
    "to_copy": "convert",
    "clone": "copy",
}
_WRITING = {"copy", "fill", "zero", "full_like"}  # their first argument is not read
_PICKING = {"index"}  # of their first argument they read as much as they give
_SILENT = {"empty", "new_empty", "zeros", "has_compatible_shallow_copy_type"}  # make room: writing there counts


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's distinct elements; 0 of a scalar, even where it is expanded.

    Examples:
        >>> size_of(torch.ones(2, 3)), size_of(torch.ones(()).expand(2, 3)), size_of(torch.ones(2, 1).expand(2, 3))
        (24, 0, 8)
    """
    dims = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return math.prod(dims) * tensor.element_size() if dims else 0


class ByteCounter(TorchDispatchMode):
    """Bytes of inputs and outputs of every operation inside, by section and kind; views and scalars move nothing.

    Examples:
        >>> with ByteCounter() as counter, counter.section("double"):
        ...     doubled = torch.ones(3) * 2.0
        >>> counter.bytes["double", "scale"]  # twelve bytes read, twelve written
        24
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self._section = ""
        self._kind: str | None = None

    @contextmanager
    def section(self, name: str, *, kind: str | None = None) -> Iterator[None]:
        """What happens inside is counted under this name, and all of it as one kind if that has a name too."""
        outer = self._section, self._kind
        self._section, self._kind = name, kind
        try:
            yield
        finally:
            self._section, self._kind = outer

    def read(self, tensor: torch.Tensor) -> None:
        """Count one reading of a tensor by something that is not run here."""
        self.bytes[self._section, "read"] += size_of(tensor)

    @property
    def total(self) -> int:
        """All bytes."""
        return self.bytes.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run the operation and count it."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.strip("_")
        if not func.is_view and name not in _SILENT:
            read = result if name in _PICKING else args[:1] if name not in _WRITING else ()
            inputs = {key: value for key, value in (kwargs or {}).items() if key != "out"}
            leaves = tree_leaves((read, args[1:], inputs, result))
            moved = sum(size_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))
            self.bytes[self._section, self._kind or _NAMES.get(name, name)] += moved
        return result
