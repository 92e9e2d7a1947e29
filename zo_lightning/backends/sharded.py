"""One backend out of those of all ranks: each answers for its share of the examples.

Only observations travel. Every rank puts them together in one order, so each sees what a single rank would have seen,
makes the same record and commits it to its own factors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from zo_lightning.backends.digest import digest_factors
from zo_lightning.backends.ranks import Ranks
from zo_lightning.backends.shares import share
from zo_lightning.core.roles import Backend, Direction, Update
from zo_lightning.core.types import (
    BankSpec,
    BaseDigest,
    Capabilities,
    EvalRequest,
    Layout,
    Observation,
    StepRecord,
    Workload,
)
from zo_lightning.errors import RankError


def merge(parts: Sequence[Observation]) -> Observation:
    """The observation of all examples from those of the shares, in order.

    Tokens add up; the shares were evaluated at the same time, so the slowest one counts.

    Examples:
        >>> merge([Observation(losses=(1.0,), weights=(1.0,), tokens=3), Observation(losses=(), weights=())])
        Observation(losses=(1.0,), weights=(1.0,), scores=(), tokens=3, seconds=0.0)
    """
    return Observation(
        losses=tuple(loss for part in parts for loss in part.losses),
        weights=tuple(weight for part in parts for weight in part.weights),
        scores=tuple(scores for part in parts for scores in part.scores),
        tokens=sum(part.tokens for part in parts),
        seconds=max(part.seconds for part in parts),
    )


class ShardedBackend:
    """Implements ``core.roles.Backend`` over the ranks of a data-parallel run.

    All ranks make the same calls in the same order. Each exchange carries a hash of all that a rank has committed, so
    that ranks which have drifted apart stop at once.

    Args:
        inner: this rank's own backend.
        ranks: all of them.
    """

    def __init__(self, inner: Backend, ranks: Ranks) -> None:
        self.inner, self.ranks = inner, ranks
        self._history = ""

    @property
    def capabilities(self) -> Capabilities:
        """Those of this rank's backend."""
        return self.inner.capabilities

    @property
    def version(self) -> int:
        """The parameter version that requests must name."""
        return self.inner.version

    @property
    def is_open(self) -> bool:
        """Whether this rank's model is loaded."""
        return self.inner.is_open

    def open(
        self,
        layout: Layout,
        direction: Direction,
        update: Update,
        bank: BankSpec,
        workloads: Sequence[Workload] = (),
    ) -> None:
        """Load this rank's model, sized for its share."""
        shares = [replace(work, batch_size=-(-work.batch_size // self.ranks.size)) for work in workloads]
        self.inner.open(layout, direction, update, bank, shares)
        self._history = ""

    def evaluate(self, requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
        """Answers to whole requests, of which this rank evaluates its share.

        Raises:
            RankError: if another rank fails or has committed something else.
        """
        shares = [share(request.examples, self.ranks.rank, self.ranks.size) for request in requests]
        # A rank without a share evaluates one example and drops the answer: a new stage takes its slot on every rank.
        asked = [replace(r, examples=own or r.examples[:1]) for r, own in zip(requests, shares, strict=True)]
        answers = {i: astuple(seen) for i, seen in enumerate(self.inner.evaluate(asked)) if shares[i]}
        gathered = self.ranks.gather("evaluate", (self.version, self._history, answers))
        self._check_same("steps", [(version, history) for version, history, _ in gathered])
        return tuple(
            merge([Observation(**_named(answers[i])) for *_, answers in gathered if i in answers])
            for i in range(len(requests))
        )

    def commit(self, record: StepRecord) -> None:
        """Apply one record to this rank's factors; every rank makes the same one."""
        self.inner.commit(record)
        self._history = hashlib.sha256(f"{self._history} {record}".encode()).hexdigest()

    def snapshot(self) -> dict[str, Any]:
        """This rank's factors, which are those of all."""
        return self.inner.snapshot()

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot."""
        self.inner.load(snapshot)
        self._history = digest_factors(snapshot)

    def digest(self) -> BaseDigest:
        """Digest of the base weights.

        Raises:
            RankError: if the ranks hold different ones.
        """
        digest = self.inner.digest()
        self._check_same("base weights", self.ranks.gather("base digest", digest.hex))
        return digest

    def check_factors(self) -> str:
        """Digest of the factors.

        Raises:
            RankError: if the ranks hold different ones.
        """
        digest = digest_factors(self.inner.snapshot())
        self._check_same("factors", self.ranks.gather("factors", digest))
        return digest

    def close(self) -> None:
        """Release this rank's model."""
        self.inner.close()

    def _check_same(self, what: str, values: Sequence[Any]) -> None:
        different = [rank for rank, value in enumerate(values) if value != values[0]]
        if different:
            raise RankError(
                f"at version {self.version} the {what} of rank {different[0]} are not those of rank 0: start all ranks "
                "with the same configuration, model and software"
            )


def _named(values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("losses", "weights", "scores", "tokens", "seconds"), values, strict=True))
