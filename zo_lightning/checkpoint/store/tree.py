"""A checkpoint's tree as JSON and blocks of bytes: plain containers, numbers, strings and tensors, and nothing else.

What JSON has no form for is an object with one key that says what it is. Types are compared exactly: a subclass would
come back as its base, and an object that is not known could run code when it is read.
"""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from zo_lightning.checkpoint.store.errors import ManifestError, UnsupportedTypeError
from zo_lightning.checkpoint.store.packs import Packer, Unpacker
from zo_lightning.checkpoint.store.tensors import DTYPES, bytes_of, memory_order, tensor_of

INLINE_BYTES = 1024  # a tensor up to this size stands in the JSON itself: a file and its sync would cost more
MAX_DEPTH = 100

_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset", torch.Size: "size"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered_dict", Counter: "counter"}
_SEQUENCE_OF = {tag: kind for kind, tag in _SEQUENCES.items()}
_MAPPING_OF = {tag: kind for kind, tag in _MAPPINGS.items()}

Json = Any
Blocks = dict[str, bytes | memoryview]


def encode(tree: Any) -> tuple[Json, Blocks]:
    """The JSON of a tree, and the blocks it names. Blocks may be views of the tensors: keep these unchanged.

    Raises:
        UnsupportedTypeError: for anything that is no plain container, number, string or dense tensor.
    """
    packer = Packer()
    node = _encode(tree, packer, "tree", 0)
    packer.close()
    return node, packer.blocks


def _encode(value: Any, packer: Packer, path: str, depth: int) -> Json:
    kind = type(value)
    if depth > MAX_DEPTH:
        raise UnsupportedTypeError(f"{path} is nested more than {MAX_DEPTH} deep, or contains itself")
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if kind is list:
        return [_encode(item, packer, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if kind in _SEQUENCES:
        items = sorted(value, key=repr) if kind in (set, frozenset) else value
        return {_SEQUENCES[kind]: [_encode(item, packer, f"{path}[{i}]", depth + 1) for i, item in enumerate(items)]}
    if kind in _MAPPINGS:
        return {
            _MAPPINGS[kind]: [
                [
                    _encode(key, packer, f"a key of {path}", depth + 1),
                    _encode(item, packer, f"{path}[{key!r}]", depth + 1),
                ]
                for key, item in value.items()
            ]
        }
    if kind in (torch.Tensor, torch.nn.Parameter):
        return {"tensor": _encode_tensor(value, packer, path)}
    raise UnsupportedTypeError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}: a checkpoint holds plain containers, numbers, strings and "
        "tensors alone, so that reading one runs no code. Keep its parts, or its name, instead"
    )


def _encode_tensor(tensor: torch.Tensor, packer: Packer, path: str) -> Json:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
        raise UnsupportedTypeError(
            f"{path} is a {dtype} tensor ({tensor.layout}, {tensor.device}): only dense ones are kept"
        )
    order = memory_order(tensor)
    data = bytes_of(tensor, order)
    node = {"dtype": dtype, "shape": list(tensor.shape), "order": order}
    if len(data) <= INLINE_BYTES:
        return node | {"bytes": base64.b64encode(data).decode()}
    return node | packer.add(data, row=len(data) // (tensor.shape[order[0]] if order else 1))


def decode(node: Json, fetch: Callable[[str], bytes]) -> Any:
    """The tree of a JSON that ``encode`` made.

    Args:
        node: the JSON.
        fetch: the content of a block, checked, by its name; what it raises is passed on.

    Raises:
        ManifestError: if the JSON is not of that form.
    """
    try:
        return _decode(node, Unpacker(fetch))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, struct.error) as error:
        raise ManifestError(f"it is not of the form that a checkpoint is written in ({error})") from error


def _decode(node: Json, unpacker: Unpacker) -> Any:
    if node is None or type(node) in (bool, int, float, str):
        return node
    if type(node) is list:
        return [_decode(item, unpacker) for item in node]
    if type(node) is not dict or len(node) != 1:
        raise ValueError("an object has not one key")
    ((tag, content),) = node.items()
    if tag == "float":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if tag == "tensor":
        return _decode_tensor(content, unpacker)
    if tag in _SEQUENCE_OF:
        return _SEQUENCE_OF[tag](_decode(item, unpacker) for item in content)
    if tag not in _MAPPING_OF:
        raise ValueError(f"{tag!r} is not known")
    mapping = _MAPPING_OF[tag]()
    for key, item in content:
        mapping[_decode(key, unpacker)] = _decode(item, unpacker)
    return mapping


def _decode_tensor(node: Json, unpacker: Unpacker) -> torch.Tensor:
    dtype, shape = DTYPES[node["dtype"]], node["shape"]
    if "bytes" in node:
        data = bytearray(base64.b64decode(node["bytes"], validate=True))
    else:
        data = unpacker.bytes_of(node, torch.Size(shape).numel() * dtype.itemsize)
    return tensor_of(data, dtype, shape, node["order"])
