"""The reference that everyone comes from: write dense weights, run padded batches, restore.

Each parameter point is written into the weights as ``base + left @ right.T``, evaluated with one
padded row per answer option as released LoZO does, and undone by copying the base back, so nothing
drifts. Slow by design: it is the oracle that other backends are held against, and the backend of
machines without vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import torch

from zo_lightning.backends.digest import digest_weights
from zo_lightning.backends.dtype import choose_dtype
from zo_lightning.backends.merging import add_product
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.objective import observe
from zo_lightning.core.roles import Direction, Update
from zo_lightning.core.types import (
    BankSpec,
    BaseDigest,
    Capabilities,
    EvalRequest,
    Layout,
    Observation,
    Point,
    Score,
    StepRecord,
    Workload,
)
from zo_lightning.errors import ConfigError, EngineError

_PROVIDES = frozenset({"low_rank", "merge", "score", "vectors"})
Row = tuple[tuple[int, ...], int]  # token ids and how many of the last ones are the option


class DenseBackend:
    """A transformers model in this process.

    Args:
        dtype: of the weights: ``auto`` is float32 on CPU and bfloat16 on GPU.
        device: ``auto`` is the GPU where there is one.
        max_rows: padded rows of one forward pass.
    """

    def __init__(
        self,
        *,
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        device: str = "auto",
        max_rows: int = 64,
    ) -> None:
        on_gpu = torch.cuda.is_available()
        self.device = torch.device(("cuda" if on_gpu else "cpu") if device == "auto" else device)
        self.dtype = choose_dtype(dtype, on_gpu=self.device.type == "cuda")
        self._max_rows = max_rows
        self._model: Any = None
        self._bank: LowRankBank | None = None
        self._weights: list[torch.Tensor] = []
        self._base: list[torch.Tensor] = []

    @property
    def capabilities(self) -> Capabilities:
        """Any number of points and columns: they are written one after another."""
        return Capabilities(max_points=1 << 30, max_rank=1 << 30, provides=_PROVIDES)

    @property
    def version(self) -> int:
        """The parameter version that requests must name."""
        return self._opened().version

    @property
    def is_open(self) -> bool:
        """Whether a model is loaded."""
        return self._bank is not None

    def open(
        self,
        layout: Layout,
        direction: Direction,
        update: Update,
        bank: BankSpec,
        workloads: Sequence[Workload] = (),
    ) -> None:
        """Load the model and keep a copy of its trainable matrices; ``max_rows`` sizes its batches."""
        from zo_lightning.models import load_model

        self._model = load_model(layout.model, dtype=self.dtype, device=self.device)
        self._weights = [self._model.get_parameter(matrix.parameter) for matrix in layout.matrices]
        self._base = [weight.clone() for weight in self._weights]
        self._bank = LowRankBank(bank, layout, direction, update, fold=self._fold, device=self.device)

    @torch.inference_mode()
    def evaluate(self, requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
        """Answers in order; each request writes its point, runs, and is undone by copy."""
        for request in requests:
            self._opened().check_version(request.point.version)
        return tuple(self._evaluate(request) for request in requests)

    def commit(self, record: StepRecord) -> None:
        """Apply one record to the bank."""
        self._opened().commit(record)

    def snapshot(self) -> dict[str, Any]:
        """The bank's snapshot; with merged weights, those too."""
        snapshot = self._opened().snapshot()
        if self._opened().num_merged:
            snapshot["merged"] = [base.cpu().clone() for base in self._base]
        return snapshot

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot bit by bit."""
        self._opened().load(snapshot)
        for base, weight, merged in zip(self._base, self._weights, snapshot.get("merged", ()), strict=False):
            base.copy_(merged)
            weight.copy_(merged)

    def digest(self) -> BaseDigest:
        """Digest of all base weights.

        Raises:
            EngineError: if it did not cover every parameter of the model.
        """
        expected = self._opened().layout.num_parameters
        named = list(self._model.named_parameters())
        covered = sum(parameter.numel() for _, parameter in named)
        if covered != expected:
            raise EngineError(f"the model shows {covered} parameters, its layout says {expected}")
        return BaseDigest(hex=digest_weights(named), num_parameters=covered)

    def close(self) -> None:
        """Drop the model. Idempotent."""
        self._model, self._bank, self._weights, self._base = None, None, [], []

    def _opened(self) -> LowRankBank:
        if self._bank is None:
            raise EngineError("the dense backend is not open")
        return self._bank

    def _evaluate(self, request: EvalRequest) -> Observation:
        if not isinstance(request.objective, Score):
            raise ConfigError("`backend=dense` scores options only: choose an objective that scores")
        start = time.perf_counter()
        rows = [(example.prompt + option, len(option)) for example in request.examples for option in example.options]
        try:
            self._write(request.point)
            scored = iter(self._option_logprobs(rows))
            logprobs = [list(islice(scored, len(example.options))) for example in request.examples]
        finally:
            self._restore()
        return observe(
            request.objective,
            request.examples,
            logprobs,
            tokens=sum(len(ids) for ids, _ in rows),
            seconds=time.perf_counter() - start,
        )

    def _write(self, point: Point) -> None:
        bank = self._opened()
        left_OC, right_IC = bank.point_left(point), bank.right_IC
        for weight, base, rows, cols in zip(self._weights, self._base, bank.row_spans, bank.col_spans, strict=True):
            weight.copy_(base.float() + (left_OC[rows] @ right_IC[cols].T).view_as(base))

    def _restore(self) -> None:
        for weight, base in zip(self._weights, self._base, strict=True):
            weight.copy_(base)

    def _fold(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        bank = self._opened()
        for base, rows, cols in zip(self._base, bank.row_spans, bank.col_spans, strict=True):
            add_product(base, left_OC[rows], right_IC[cols])
        self._restore()

    def _option_logprobs(self, rows: Sequence[Row]) -> Iterator[float]:
        """Summed log-probability of each row's option tokens."""
        for start in range(0, len(rows), self._max_rows):
            yield from self._forward(rows[start : start + self._max_rows])

    def _forward(self, rows: Sequence[Row]) -> list[float]:
        # Left padding to a multiple of 8, as released LoZO: options then end in the same column.
        length = -(-max(len(ids) for ids, _ in rows) // 8) * 8
        ids_BT = torch.zeros(len(rows), length, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for i, (ids, _) in enumerate(rows):
            ids_BT[i, length - len(ids) :] = torch.tensor(ids)
            mask_BT[i, length - len(ids) :] = 1
        kept = max(count for _, count in rows) + 1
        logits = self._model(
            input_ids=ids_BT.to(self.device),
            attention_mask=mask_BT.to(self.device),
            position_ids=(mask_BT.cumsum(-1) - 1).clamp(min=0).to(self.device),
            use_cache=False,
            logits_to_keep=kept,
        ).logits
        logprobs_BKV = logits.float().log_softmax(-1)
        return [
            float(
                logprobs_BKV[i, kept - count - 1 : -1]
                .gather(-1, torch.tensor(ids[-count:], device=self.device)[:, None])
                .sum()
            )
            for i, (ids, count) in enumerate(rows)
        ]
