"""The four roles of a method and the backend that answers it. Every method is one choice of each role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from zo_lightning.core.types import (
    BankSpec,
    BaseDigest,
    Capabilities,
    DirectionKey,
    Estimate,
    EvalRequest,
    Example,
    Layout,
    Objective,
    Observation,
    StepRecord,
    Workload,
)


class Direction(Protocol):
    """Which directions a step searches, as keys, and the low-rank factors that a key stands for.

    A direction of matrix ``W`` (rows O, columns I) is ``U_OR @ V_IR.T``. Factors come stacked over
    all matrices of the layout, so one call serves the whole model. A layout may be of shards: their rows and columns
    are those of the whole matrices' factors from ``first_row`` and ``first_col`` on, bit by bit. Of a vector the right
    factor is (1, 0, ...), and the left one zero behind its first column.

    A direction is a frozen dataclass: its init fields, plain values, are its recipe in other processes. ``cycle`` is
    one of them: the number of stages after which right factors come round again, set for a bank that reuses its slots.
    """

    rank: int
    refresh_every: int
    cycle: int | None

    @property
    def needs(self) -> frozenset[str]:
        """What a backend must provide."""
        ...

    def keys(self, *, seed: int, step: int) -> tuple[DirectionKey, ...]:
        """The keys of optimizer step ``step``, a pure function of its arguments."""
        ...

    def applied_key(self, key: DirectionKey) -> DirectionKey:
        """The key that the update applies for a measured ``key`` (the same one, except for parity modes)."""
        ...

    def left(self, key: DirectionKey, layout: Layout, device: torch.device) -> torch.Tensor:
        """U_OR, float32 [layout.num_rows, rank], the direction's scale included."""
        ...

    def right(self, key: DirectionKey, layout: Layout, device: torch.device) -> torch.Tensor:
        """V_IR, float32 [layout.num_cols, rank], shared by all keys of one stage."""
        ...


class Query(Protocol):
    """Which parameter points are evaluated on which examples."""

    @property
    def provides(self) -> frozenset[str]:
        """What an estimator can count on in the observations."""
        ...

    @property
    def max_points(self) -> int:
        """Points that are evaluated at once."""
        ...

    def plan(
        self, keys: Sequence[DirectionKey], examples: Sequence[Example], version: int, objective: Objective
    ) -> tuple[EvalRequest, ...]:
        """The requests of a step that depend on no answer."""
        ...

    def follow(self, requests: Sequence[EvalRequest], observations: Sequence[Observation]) -> tuple[EvalRequest, ...]:
        """Further requests, given the answers so far; empty when the step is complete."""
        ...


class Estimator(Protocol):
    """Turns a whole accumulation window of observations into one gradient estimate."""

    @property
    def needs(self) -> frozenset[str]:
        """What a query must provide."""
        ...

    def estimate(self, requests: Sequence[EvalRequest], observations: Sequence[Observation]) -> Estimate:
        """One estimate over all requests of the window, pooled over micro-batches."""
        ...


class Update(Protocol):
    """How an estimate changes the left factor of a bank slot. Pure: state goes in and comes out."""

    lr: float

    def init(self, left_OR: torch.Tensor) -> dict[str, torch.Tensor]:
        """The state of a fresh slot."""
        ...

    def apply(
        self,
        left_OR: torch.Tensor,
        terms: Sequence[tuple[float, torch.Tensor]],
        lr: float,
        state: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The new left factor and state after ``terms`` of (coefficient, U_OR)."""
        ...


class Backend(Protocol):
    """Evaluates requests and holds the one mutable thing, the bank, where the weights are."""

    @property
    def capabilities(self) -> Capabilities:
        """Known before ``open``, so that a method that cannot run is refused at once."""
        ...

    @property
    def version(self) -> int:
        """The parameter version that requests must name."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the model is loaded. Whoever opened a backend closes it; others only lease it."""
        ...

    def open(
        self,
        layout: Layout,
        direction: Direction,
        update: Update,
        bank: BankSpec,
        workloads: Sequence[Workload] = (),
    ) -> None:
        """Load the model, sized for ``workloads`` if they are known. Raises ``ZOError``s with the way out."""
        ...

    def evaluate(self, requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
        """Answers in the order of the requests. Raises ``StaleVersionError`` for another version."""
        ...

    def commit(self, record: StepRecord) -> None:
        """Apply one record: the only mutation. Raises ``StaleVersionError`` unless its version is current."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """The bank as plain containers and tensors, loadable by every backend."""
        ...

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot bit by bit."""
        ...

    def digest(self) -> BaseDigest:
        """Digest of all base weights."""
        ...

    def close(self) -> None:
        """Release the model. Idempotent."""
        ...
