"""The optimizer that Lightning steps: it turns a window of observations into one committed record."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from zo_lightning.core.roles import Backend, Direction, Estimator
from zo_lightning.core.types import Estimate, EvalRequest, Observation, StepRecord
from zo_lightning.errors import DivergedError

log = logging.getLogger(__name__)


class ZOOptimizer(Optimizer):
    """Commits one ``StepRecord`` a step to the backend, where the factors live.

    Requests and observations are collected over the whole accumulation window; the estimator sees them once, when the
    window has closed. A step whose loss is not finite is skipped: its record has no terms, only the version advances.
    The counters of skipped steps are part of the state dict.

    Args:
        params: the version counter alone, which mirrors ``backend.version``.
        lr: learning rate; schedulers change it as in any optimizer.
        backend: evaluates and commits.
        direction: names the applied direction of a measured one.
        estimator: turns observations into an estimate.
        max_skipped: skipped steps in a row that end the run.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        *,
        lr: float,
        backend: Backend,
        direction: Direction,
        estimator: Estimator,
        max_skipped: int = 10,
    ) -> None:
        super().__init__(params, {"lr": lr, "num_skipped": 0, "num_skipped_in_a_row": 0})
        self.max_skipped = max_skipped
        self._backend, self._direction, self._estimator = backend, direction, estimator
        self._requests: list[EvalRequest] = []
        self._observations: list[Observation] = []
        self._estimate: Estimate | None = None

    @property
    def num_skipped(self) -> int:
        """Steps skipped since the run began, before the open window."""
        return int(self.param_groups[0]["num_skipped"])

    @property
    def estimate(self) -> Estimate:
        """The estimate of the open window, made at the first call."""
        if self._estimate is None:
            finite = all(math.isfinite(loss) for observation in self._observations for loss in observation.losses)
            self._estimate = (
                self._estimator.estimate(self._requests, self._observations)
                if finite
                else Estimate(terms=(), loss=math.nan)
            )
        return self._estimate

    def collect(self, requests: Sequence[EvalRequest], observations: Sequence[Observation]) -> None:
        """Add a micro-batch to the open window."""
        self._requests.extend(requests)
        self._observations.extend(observations)

    def clip(self, limit: float, algorithm: str) -> None:
        """Clip the projected gradients of the open window.

        Args:
            limit: largest size.
            algorithm: ``norm`` scales all coefficients to this Euclidean norm, ``value`` clamps each.
        """
        coefficients = [coefficient for _, coefficient in self.estimate.terms]
        if algorithm == "value":
            clipped = [min(max(c, -limit), limit) for c in coefficients]
        else:
            norm = math.hypot(*coefficients)
            clipped = [c * limit / norm for c in coefficients] if norm > limit else coefficients
        terms = tuple((key, c) for (key, _), c in zip(self.estimate.terms, clipped, strict=True))
        self._estimate = replace(self.estimate, terms=terms)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the closure, commit what its window yields, and close the window.

        Raises:
            DivergedError: after ``max_skipped`` skipped steps in a row.
        """
        loss = closure() if closure is not None else None
        record = self._record()
        self._backend.commit(record)
        self._reset_window()
        self.param_groups[0]["params"][0].fill_(self._backend.version)
        self._count(record)
        return loss

    def _reset_window(self) -> None:
        self._requests, self._observations, self._estimate = [], [], None

    def _record(self) -> StepRecord:
        estimate, skipped = self.estimate, not self.estimate.is_finite
        applied = tuple((self._direction.applied_key(key), coefficient) for key, coefficient in estimate.terms)
        return StepRecord(
            step=next(key.step for request in self._requests for key, _ in request.point.terms),
            version=self._requests[0].point.version,
            lr=self.param_groups[0]["lr"],
            terms=() if skipped else applied,
            skipped=skipped,
        )

    def _count(self, record: StepRecord) -> None:
        group = self.param_groups[0]
        if not record.skipped:
            group["num_skipped_in_a_row"] = 0
            return
        group["num_skipped"] += 1
        group["num_skipped_in_a_row"] += 1
        log.warning("step %d is skipped: its loss or gradient is not finite", record.step)
        if group["num_skipped_in_a_row"] >= self.max_skipped:
            raise DivergedError(
                f"{self.max_skipped} steps in a row had a loss or gradient that is not finite: lower `update.lr` or "
                "change `query.eps`. Checkpoints already written are kept"
            )
