"""Backends for tests: rows of the conformance table, opened once a session.

Several vLLM engines can live in one process, but they share torch's process groups, and closing one of them takes the
groups from all: the next request to another dies with ``pipeline model parallel group is not initialized``. And while
one lives, the setting that would put another into a child process is cached, and without effect. Therefore only one
lives at a time. The session fixture ``opened`` is parametrised with a ``Row``; pytest sorts the tests of all
modules by it and finishes with one engine before it starts the next. A test that needs an engine takes that fixture and
never opens another engine in this process while it is open.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tests.examples import mixed_examples
from zo_lightning.backends.dense import DenseBackend
from zo_lightning.backends.fake import FakeBackend
from zo_lightning.backends.packed import PackedBackend
from zo_lightning.backends.vllm import VllmBackend
from zo_lightning.core.types import (
    BankSpec,
    DirectionKey,
    EvalRequest,
    Example,
    Layout,
    MatrixSpec,
    Objective,
    Observation,
    Point,
    Score,
    StepRecord,
    Term,
)
from zo_lightning.directions import LowRank
from zo_lightning.models import PreparedModel, prepare_model
from zo_lightning.updates import Sgd

TINY = ("tiny-llama", "tiny-qwen3", "tiny-opt")
RANK, CAPACITY, SEED = 2, 8, 42
STAGES = CAPACITY // RANK
EPS = 1e-3


@dataclass(frozen=True)
class Row:
    """One backend on one model: a row of the conformance table."""

    backend: str
    model: str = "tiny-llama"
    policy: str = "cyclic"
    dtype: str = "float32"
    process: str = "inline"
    trainable: str = "linear"

    def __str__(self) -> str:
        fields = (self.backend, self.model, self.policy, self.dtype, self.process, self.trainable)
        return " ".join(f for f in fields if f not in ("cyclic", "float32", "inline", "linear"))


class Opened:
    """An open backend with what its tests need; use it as it is at version 0 after ``reset``."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.layout, self.examples = model_of(row)
        self.backend = _make(row)
        self.bank = BankSpec(rank=RANK, capacity=CAPACITY, policy=row.policy)  # type: ignore[arg-type]
        self.open()
        self._empty = self.backend.snapshot()

    def open(self) -> None:
        """Open the backend: any ``LowRank`` of this rank and scale, whatever its stages, has the same factors."""
        self.backend.open(self.layout, directions(refresh_every=3), Sgd(lr=1.0), self.bank)

    def reset(self) -> Opened:
        """Back to version 0: by a snapshot, or anew once the base has changed."""
        if self.backend.snapshot()["num_merged"]:
            self.backend.close()
            self.open()
        else:
            self.backend.load(self._empty)
        return self

    def ask(
        self, *terms: Term, examples: Sequence[Example] | None = None, objective: Objective | None = None
    ) -> Observation:
        """One point at the present version, on all examples unless told otherwise."""
        (seen,) = self.backend.evaluate([self.request(*terms, examples=examples, objective=objective)])
        return seen

    def request(
        self, *terms: Term, examples: Sequence[Example] | None = None, objective: Objective | None = None
    ) -> EvalRequest:
        point = Point(version=self.backend.version, terms=terms)
        return EvalRequest(point=point, examples=tuple(examples or self.examples), objective=objective or Score())

    def commit(self, *terms: Term, lr: float = 1e-3) -> None:
        version = self.backend.version
        self.backend.commit(StepRecord(step=version, version=version, lr=lr, terms=terms))

    def train(self, steps: int, *, refresh_every: int = 3) -> None:
        """Commit made-up steps from the present version on, without asking anything."""
        for step in range(self.backend.version, self.backend.version + steps):
            self.commit((key_of(step, refresh_every=refresh_every), (-1.0) ** step * (1 + step % 5)))


@functools.cache
def oracle_of(row: Row) -> Opened:
    """The backend that a row is held against, opened once: another dense one, or another fake one."""
    kind = "fake" if row.backend == "fake" else "dense"
    return Opened(Row(kind, row.model, row.policy, trainable=row.trainable))


def on_rows(*rows: Row) -> pytest.MarkDecorator:
    """Parametrise the fixture ``opened``; what needs vLLM is marked so, and skipped where there is none."""
    return pytest.mark.parametrize("opened", [pytest.param(r, marks=_marks(r), id=str(r)) for r in rows], indirect=True)


def _marks(row: Row) -> list[pytest.MarkDecorator]:
    if row.backend != "vllm":
        return []
    no_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM, which has no wheel for this machine")
    slow = [pytest.mark.slow] if row.process == "child" else []  # starting one takes 20 seconds
    return [pytest.mark.vllm, no_vllm, *slow]


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from a second thread, and threads that wait for each other crawl on a busy machine.

    ``torch.set_num_threads`` itself is a function that does nothing once an engine has run in this process.
    """
    before = torch.get_num_threads()
    torch._C.set_num_threads(1)
    yield
    torch._C.set_num_threads(before)


def directions(*, refresh_every: int) -> LowRank:
    return LowRank(rank=RANK, refresh_every=refresh_every, cycle=STAGES)


def key_of(step: int, *, refresh_every: int = 3, index: int = 0) -> DirectionKey:
    (key,) = directions(refresh_every=refresh_every).keys(seed=SEED, step=step)
    return DirectionKey(seed=key.seed, step=step, stage=key.stage, index=index)


@functools.cache
def prepared(model: str, trainable: str = "linear") -> PreparedModel:
    return prepare_model(name=model, path=None, source=model, trainable=trainable)  # type: ignore[arg-type]


def model_of(row: Row) -> tuple[Layout, tuple[Example, ...]]:
    """Layout and examples of a row's model; the fake one has two matrices and takes any tokens."""
    model = prepared(row.model, row.trainable)
    examples = mixed_examples(model.folder)
    if row.backend != "fake":
        return model.layout, examples
    matrices = (MatrixSpec(name="a", rows=12, cols=8), MatrixSpec(name="b", rows=6, cols=10))
    return Layout(model="quadratic", matrices=matrices, num_parameters=156), examples


def _make(row: Row) -> Any:
    match row.backend:
        case "fake":
            return FakeBackend(max_points=2)
        case "dense":
            return DenseBackend(dtype=row.dtype, device="cpu", max_rows=16)  # type: ignore[arg-type]
        case "packed":
            return PackedBackend(dtype=row.dtype, device="cpu")  # type: ignore[arg-type]
        case _:
            return VllmBackend(dtype=row.dtype, process=row.process, max_length=256)  # type: ignore[arg-type]
