"""A quadratic in place of a model: its gradient is known, so tests and examples need no weights.

The parameters theta are the layout's matrices, stacked into one vector of N numbers that starts at zero. An option's
mean token log-probability is ``-0.5 * ||theta - target||^2 / N``. Therefore ``Score(loss="gold")`` is that quadratic
itself with gradient ``(theta - target) / N``, and ``Score(loss="candidates")`` the cross entropy over its values.
"""

from __future__ import annotations

import functools
import hashlib
import time
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from zo_lightning.core import rng
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.objective import observe
from zo_lightning.core.roles import Direction, Update
from zo_lightning.core.types import (
    BankSpec,
    BaseDigest,
    Capabilities,
    EvalRequest,
    Example,
    Layout,
    Observation,
    Point,
    Score,
    StepRecord,
    Workload,
)
from zo_lightning.errors import ConfigError, EngineError

_NOISE = 0.5  # an example's own share of its target; the rest is common to all, so that there is something to learn


@functools.lru_cache(maxsize=128)  # each entry is as large as the layout
def _drawn(seed: int, size: int) -> torch.Tensor:
    return rng.normals(seed, rng.ROLE_LEFT, step=0, index=0, counts=(size,)).double()


def target(example: Example, option: int, size: int) -> torch.Tensor:
    """Where the log-probability of an option is highest, float64 [size].

    Right options pull theta to one common place, wrong ones to its opposite, each with noise from its token ids.

    Examples:
        >>> example = Example(prompt=(1, 2), options=((3,), (4,)), label=1)
        >>> float(target(example, 0, 64) @ target(example, 1, 64)) < 0
        True
    """
    sign = 1.0 if option == example.label else -1.0
    seed = zlib.crc32(repr((example.prompt, example.options[option])).encode())
    return sign * _drawn(0, size) + _NOISE * _drawn(seed, size)


class FakeBackend:
    """Implements ``core.roles.Backend``; ignores ``layout.model``.

    Args:
        max_points: points that one call may evaluate.
        max_rank: rank columns that the bank may have.
    """

    def __init__(self, max_points: int = 8, max_rank: int = 512) -> None:
        provides = frozenset({"low_rank", "score", "merge"})
        self.capabilities = Capabilities(max_points=max_points, max_rank=max_rank, provides=provides)
        self._opened: LowRankBank | None = None
        self._base: list[torch.Tensor] = []

    @property
    def is_open(self) -> bool:
        """Whether ``open`` has run and ``close`` has not."""
        return self._opened is not None

    @property
    def version(self) -> int:
        """The bank's version."""
        return self._bank.version

    def open(
        self,
        layout: Layout,
        direction: Direction,
        update: Update,
        bank: BankSpec,
        workloads: Sequence[Workload] = (),
    ) -> None:
        """Start at theta = 0; there is nothing to size."""
        self._base = [torch.zeros(matrix.rows, matrix.cols) for matrix in layout.matrices]
        self._opened = LowRankBank(bank, layout, direction, update, fold=self._fold)

    def evaluate(self, requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
        """Answers in the order of the requests.

        Raises:
            StaleVersionError: if a request names another version than the bank's.
            ConfigError: if an objective is not ``Score``.
        """
        return tuple(self._answer(request) for request in requests)

    def commit(self, record: StepRecord) -> None:
        """Apply one record to the bank."""
        self._bank.commit(record)

    def snapshot(self) -> dict[str, Any]:
        """The bank's snapshot; with merged weights, those too."""
        snapshot = self._bank.snapshot()
        if self._bank.num_merged:
            snapshot["merged"] = [base_OI.clone() for base_OI in self._base]
        return snapshot

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot."""
        self._bank.load(snapshot)
        self._base = [base_OI.clone() for base_OI in snapshot.get("merged", self._base)]

    def digest(self) -> BaseDigest:
        """Digest of the base weights, which only ``bank.policy=merge`` writes."""
        digest = hashlib.sha256(b"".join(base_OI.numpy().tobytes() for base_OI in self._base))
        return BaseDigest(hex=digest.hexdigest(), num_parameters=sum(base_OI.numel() for base_OI in self._base))

    def close(self) -> None:
        """Forget everything."""
        self._opened, self._base = None, []

    def theta(self, point: Point) -> torch.Tensor:
        """All parameters at a point, float64 [N]."""
        left_OC = self._bank.point_left(point)  # before right_IC: a new stage adds its columns here
        return torch.cat([matrix_OI.flatten() for matrix_OI in self._dense(left_OC, self._bank.right_IC)]).double()

    @property
    def _bank(self) -> LowRankBank:
        if self._opened is None:
            raise EngineError("the backend is closed: open it before asking it anything")
        return self._opened

    def _dense(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> list[torch.Tensor]:
        spans = zip(self._base, self._bank.row_spans, self._bank.col_spans, strict=True)
        return [base_OI + left_OC[rows] @ right_IC[cols].T for base_OI, rows, cols in spans]

    def _fold(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        self._base = self._dense(left_OC, right_IC)

    def _answer(self, request: EvalRequest) -> Observation:
        if not isinstance(request.objective, Score):
            raise ConfigError("backend=fake only scores options: set an `objective` that scores them")
        started = time.perf_counter()
        theta = self.theta(request.point)
        logprobs = [
            [
                -len(option) * _distance(theta, target(example, i, len(theta)))
                for i, option in enumerate(example.options)
            ]
            for example in request.examples
        ]
        tokens = sum(len(e.prompt) + sum(map(len, e.options)) for e in request.examples)
        seconds = time.perf_counter() - started
        return observe(request.objective, request.examples, logprobs, tokens=tokens, seconds=seconds)


def _distance(theta: torch.Tensor, goal: torch.Tensor) -> float:
    return 0.5 * float((theta - goal).square().mean())
