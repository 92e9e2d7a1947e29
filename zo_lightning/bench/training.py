"""The steps that are measured, each a case of `timing.measure`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from zo_lightning.backends.packed import PackedBackend
from zo_lightning.backends.vllm import VllmBackend
from zo_lightning.bench.released import ReleasedLozo
from zo_lightning.bench.workbench import Workbench
from zo_lightning.checkpoint.journal import Journal
from zo_lightning.core.method import Method
from zo_lightning.core.types import Point
from zo_lightning.models import load_model
from zo_lightning.optim.zo_optimizer import ZOOptimizer

PARTS = ("plan", "programming", "estimate", "commit")  # of a step, beside the engine's own answer


class Training:
    """Consecutive steps of a method on an open backend, as the module and the optimizer take them.

    Args:
        bench: seed and batches.
        backend: open.
        method: another than the workbench's.
        directions: searched in each step.
        journal: of the steps.
    """

    def __init__(
        self,
        bench: Workbench,
        backend: Any,
        *,
        method: Method | None = None,
        directions: int = 1,
        journal: Journal | None = None,
    ) -> None:
        self._bench, self._backend = bench, backend
        self._method, self._directions = method or bench.method, directions
        self._step = backend.version
        self.seconds_of_parts: list[defaultdict[str, float]] = []  # of each step; programming by `time_programming`
        self._optimizer = ZOOptimizer(
            [torch.nn.Parameter(torch.zeros((), dtype=torch.int64), requires_grad=False)],
            lr=self._method.update.lr,
            backend=backend,
            direction=self._method.direction,
            estimator=self._method.estimator,
        )
        self._optimizer.journal = journal

    def __call__(self, number: int) -> None:
        """One step on the batch of a round."""
        method, backend, examples = self._method, self._backend, self._bench.batch(number)
        self.seconds_of_parts.append(defaultdict(float))
        with self.timed("plan"):
            first, *_ = method.direction.keys(seed=self._bench.seed, step=self._step)
            keys = [replace(first, index=index) for index in range(self._directions)]
            requests = method.query.plan(keys, examples, backend.version, self._bench.objective)
        observations = backend.evaluate(requests)
        while further := method.query.follow(requests, observations):
            requests, observations = requests + further, observations + backend.evaluate(further)
        with self.timed("estimate"):
            self._optimizer.collect(requests, observations, len(examples))
            _ = self._optimizer.estimate
        with self.timed("commit"):
            self._optimizer.step()
        self._step += 1

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add what passes inside to a part of the running step."""
        start = time.perf_counter()
        yield
        self.seconds_of_parts[-1][part] += time.perf_counter() - start


def time_programming(backend: Any, timed: Callable[[], AbstractContextManager[None]]) -> None:
    """Have vLLM's or the packed backend's programming of a step's points run inside a context."""
    if isinstance(backend, VllmBackend):
        call = backend._rpc

        def call_timed(method: str, *args: Any) -> list[Any]:
            with timed() if method == "zo_program" else nullcontext():
                return call(method, *args)

        backend._rpc = call_timed  # type: ignore[method-assign]
    elif isinstance(backend, PackedBackend):
        program = backend._factors.program

        def program_timed(points: Sequence[Point]) -> None:
            with timed():
                program(points)

        backend._factors.program = program_timed  # type: ignore[method-assign]


def released(
    bench: Workbench,
    *,
    dtype: str,
    device: torch.device,
    linear: bool = False,
    kind: type[ReleasedLozo] = ReleasedLozo,
    **changes: Any,
) -> ReleasedLozo:
    """The dense path with the workbench's settings; ``linear`` trains the matrices of the layout alone."""
    return kind(
        load_model(bench.model.folder, dtype=dtype, device=device),
        objective=bench.objective,
        only=[matrix.parameter for matrix in bench.model.layout.matrices] if linear else None,
        rank=bench.method.direction.rank,
        refresh_every=bench.method.direction.refresh_every,
        eps=bench.method.query.eps,  # type: ignore[attr-defined]
        lr=bench.method.update.lr,
        **changes,
    )
