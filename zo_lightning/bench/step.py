"""``zo-bench step``: what a step costs beside matched inference and beside what it replaces."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from zo_lightning.bench.report import Report, bars
from zo_lightning.bench.timing import measure, ratio_of_medians, use_all_cores
from zo_lightning.bench.workbench import Workbench
from zo_lightning.core.types import Example
from zo_lightning.optim.zo_optimizer import ZOOptimizer


class Training:
    """Consecutive steps of a method on an open backend, as the module and the optimizer take them.

    Args:
        bench: method, seed and batches.
        backend: open.
    """

    def __init__(self, bench: Workbench, backend: Any) -> None:
        self._bench, self._backend = bench, backend
        self._step = 0
        self.seconds_evaluating: list[float] = []  # of each step: inside the backend's forward passes
        self._optimizer = ZOOptimizer(
            [torch.nn.Parameter(torch.zeros((), dtype=torch.int64), requires_grad=False)],
            lr=bench.method.update.lr,
            backend=backend,
            direction=bench.method.direction,
            estimator=bench.method.estimator,
        )

    def __call__(self, number: int) -> None:
        """One step on the batch of a round."""
        method, backend, examples = self._bench.method, self._backend, self._bench.batch(number)
        keys = method.direction.keys(seed=self._bench.seed, step=self._step)
        requests = method.query.plan(keys, examples, backend.version, self._bench.objective)
        observations = backend.evaluate(requests)
        while further := method.query.follow(requests, observations):
            requests, observations = requests + further, observations + backend.evaluate(further)
        self._optimizer.collect(requests, observations)
        self._optimizer.step()
        self._step += 1
        self.seconds_evaluating.append(sum(o.seconds for o in observations))


def run(bench: Workbench) -> Report:
    """Measure a step and its matched inference, in turn."""
    with bench.opened("backend") as backend:
        use_all_cores()
        training = Training(bench, backend)
        cases = {"step": training, "matched inference": lambda number: matched(bench, backend, bench.batch(number))}
        seconds = measure(cases, rounds=bench.rounds, warm_up=bench.warm_up)
    ratio = ratio_of_medians(seconds["step"], seconds["matched inference"])
    medians = {name: median(values) for name, values in seconds.items()}
    return Report(
        title=f"a step on {bench.model_name}, {bench.task_name}",
        columns=("", "seconds"),
        rows=[(name, f"{value:.3f}") for name, value in medians.items()],
        facts={**ratio.facts("step_over_matched"), "rounds": bench.rounds},
        draw=lambda axes: bars(axes, medians, "seconds (median)"),
        notes=(f"step / matched inference {ratio}",),
    )


def matched(bench: Workbench, backend: Any, examples: Sequence[Example]) -> None:
    """The inference that a step rests on: the same requests, without directions, factors or update."""
    backend.infer(*[examples] * bench.method.query.max_points)
