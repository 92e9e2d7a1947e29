"""Plain tuples for the border between the trainer and the workers."""

from __future__ import annotations

from typing import Any

import torch

from zo_lightning.core.types import DirectionKey, Layout, Point, StepRecord, Term

Packed = Any


def write_layout(layout: Layout) -> tuple[Any, ...]:
    """A layout as (model, number of parameters, matrices)."""
    return layout.model, layout.num_parameters, tuple((m.name, m.rows, m.cols) for m in layout.matrices)


def write_terms(terms: tuple[Term, ...]) -> tuple[Any, ...]:
    """Terms as (seed, step, stage, index, coefficient)."""
    return tuple((key.seed, key.step, key.stage, key.index, c) for key, c in terms)


def read_terms(terms: Any) -> tuple[Term, ...]:
    """Inverse of ``write_terms``."""
    return tuple(
        (DirectionKey(seed=seed, step=step, stage=stage, index=index), c) for seed, step, stage, index, c in terms
    )


def write_point(point: Point) -> tuple[Any, ...]:
    """A point as (version, terms).

    Examples:
        >>> read_point(write_point(Point(version=3)))
        Point(version=3, terms=())
    """
    return point.version, write_terms(point.terms)


def read_point(point: Any) -> Point:
    """Inverse of ``write_point``."""
    version, terms = point
    return Point(version=version, terms=read_terms(terms))


def write_record(record: StepRecord) -> tuple[Any, ...]:
    """A record as (step, version, lr, terms, skipped)."""
    return record.step, record.version, record.lr, write_terms(record.terms), record.skipped


def read_record(record: Any) -> StepRecord:
    """Inverse of ``write_record``."""
    step, version, lr, terms, skipped = record
    return StepRecord(step=step, version=version, lr=lr, terms=read_terms(terms), skipped=skipped)


def pack(value: Any) -> Packed:
    """Containers with every tensor on the CPU as its type, shape and bytes; a transposed matrix stays one.

    Examples:
        >>> unpack(pack({"left": torch.ones(2, 1), "slots": [[1, 2]]}))
        {'left': tensor([[1.],
                [1.]]), 'slots': [[1, 2]]}
    """
    if isinstance(value, torch.Tensor):
        if value.dim() == 2 and not value.is_contiguous():
            return {"__transposed__": pack(value.T.contiguous())}
        data = value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return {"__tensor__": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "data": data}
    if isinstance(value, dict):
        return {name: pack(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [pack(item) for item in value]
    return value


def unpack(value: Packed) -> Any:
    """Inverse of ``pack``."""
    if isinstance(value, dict) and "__transposed__" in value:
        return unpack(value["__transposed__"]).T
    if isinstance(value, dict) and "__tensor__" in value:
        tensor = torch.empty(value["shape"], dtype=getattr(torch, value["__tensor__"]))
        if value["data"]:  # torch.frombuffer refuses an empty one
            tensor.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(value["data"]), dtype=torch.uint8))
        return tensor
    if isinstance(value, dict):
        return {name: unpack(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [unpack(item) for item in value]
    return value
