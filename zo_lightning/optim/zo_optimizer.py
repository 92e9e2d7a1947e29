"""The optimizer that Lightning steps: it turns a window of observations into one committed record."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from zo_lightning.checkpoint.journal import Entry, Journal
from zo_lightning.core.roles import Backend, Direction, Estimator
from zo_lightning.core.types import Estimate, EvalRequest, Observation, StepRecord
from zo_lightning.errors import DivergedError, JournalError

log = logging.getLogger(__name__)


class ZOOptimizer(Optimizer):
    """Commits one ``StepRecord`` a step to the backend, where the factors live.

    Requests and observations are collected over the whole accumulation window; the estimator sees them once, when the
    window has closed. A step whose loss is not finite is skipped: its record has no terms, only the version advances.
    The counters of skipped steps and of training examples are part of the state dict.

    With a journal a step is written before it is applied, and what is applied is what was written. A step that the
    journal holds already is committed again as it was: its window has no requests.

    Args:
        params: the version counter alone, which mirrors ``backend.version``.
        lr: learning rate; schedulers change it as in any optimizer.
        backend: evaluates and commits.
        direction: names the applied direction of a measured one.
        estimator: turns observations into an estimate.
        max_skipped: skipped steps in a row that end the run.

    Attributes:
        journal: what makes a step durable, if anything does; set before the first step.
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
        super().__init__(params, {"lr": lr, "num_skipped": 0, "num_skipped_in_a_row": 0, "num_examples": 0})
        self.max_skipped = max_skipped
        self.journal: Journal | None = None
        self._backend, self._direction, self._estimator = backend, direction, estimator
        self._requests: list[EvalRequest] = []
        self._observations: list[Observation] = []
        self._num_examples = 0
        self._estimate: Estimate | None = None

    @property
    def recorded(self) -> Entry | None:
        """What the journal holds of the step to come; None where it has to be measured."""
        return self.journal.entries.get(self._backend.version) if self.journal is not None else None

    @property
    def num_skipped(self) -> int:
        """Steps skipped since the run began, before the open window."""
        return int(self.param_groups[0]["num_skipped"])

    @property
    def estimate(self) -> Estimate:
        """The estimate of the open window, made at the first call."""
        if self._estimate is None and (entry := self.recorded) is not None:
            self._estimate = Estimate(terms=entry.record.terms, loss=entry.loss)
        if self._estimate is None:
            finite = all(math.isfinite(loss) for observation in self._observations for loss in observation.losses)
            self._estimate = (
                self._estimator.estimate(self._requests, self._observations)
                if finite
                else Estimate(terms=(), loss=math.nan)
            )
        return self._estimate

    def collect(self, requests: Sequence[EvalRequest], observations: Sequence[Observation], num_examples: int) -> None:
        """Add a micro-batch to the open window."""
        self._requests.extend(requests)
        self._observations.extend(observations)
        self._num_examples += num_examples

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
            JournalError: if the step cannot be written, or the journal's was made with other data.
        """
        loss = closure() if closure is not None else None
        entry = self._entry()
        self._backend.commit(entry.record)
        self._reset_window()
        self.param_groups[0]["params"][0].fill_(self._backend.version)
        self.param_groups[0]["num_examples"] = entry.cursor
        self._count(entry.record)
        return loss

    def _entry(self) -> Entry:
        cursor = self.param_groups[0]["num_examples"] + self._num_examples
        if (entry := self.recorded) is not None:
            if entry.cursor != cursor:
                raise JournalError(
                    f"step {entry.record.step} was made after {entry.cursor:,} training examples, now it comes after "
                    f"{cursor:,}: the journal is of other data or another `data.batch_size`; set them as they were"
                )
            return entry
        loss = math.fsum(o.value for o in self._observations) / len(self._observations)
        entry = Entry(record=self._record(), loss=loss, cursor=cursor)
        return entry if self.journal is None else self.journal.append(entry)

    def _reset_window(self) -> None:
        self._requests, self._observations, self._num_examples, self._estimate = [], [], 0, None

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
