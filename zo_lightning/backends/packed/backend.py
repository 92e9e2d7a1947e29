"""Every function evaluation of a step in one forward pass of a transformers model, without a padded token."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

import torch

from zo_lightning.backends.digest import digest_weights
from zo_lightning.backends.dtype import choose_dtype
from zo_lightning.backends.packed.exact import ExactFactors
from zo_lightning.backends.packed.factors import Factors, SharedFactors, keys_of
from zo_lightning.backends.packed.model import PackedModel
from zo_lightning.backends.packed.tree import tree_of
from zo_lightning.backends.packed.weights import PrepackedWeight, Weight, can_prepack
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
    Score,
    StepRecord,
    Workload,
)
from zo_lightning.errors import ConfigError, EngineError

_PROVIDES = frozenset({"low_rank", "merge", "score", "vectors"})


class PackedBackend:
    """A transformers model in this process, whose base stays frozen.

    Args:
        dtype: of the weights: ``auto`` is float32 on CPU and bfloat16 on GPU.
        device: ``auto`` is the GPU where there is one.
        max_tokens: tokens of one forward pass; a longer sequence still runs, alone.
        fold_stages: on CPU in float32, hold completed stages in a working copy of the linear weights: a bank's rank
            then costs no time, and the copy as much memory as the weights.
    """

    def __init__(
        self,
        *,
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        device: str = "auto",
        max_tokens: int = 8192,
        fold_stages: bool = True,
    ) -> None:
        if max_tokens < 1:
            raise ConfigError(f"`backend.max_tokens` must be at least 1, not {max_tokens}")
        on_gpu = torch.cuda.is_available()
        self.device = torch.device(("cuda" if on_gpu else "cpu") if device == "auto" else device)
        self.dtype = choose_dtype(dtype, on_gpu=self.device.type == "cuda")
        self._max_tokens, self._fold_stages = max_tokens, fold_stages
        self._bank: LowRankBank | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Any number of points and columns."""
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
        """Load the model; ``max_tokens`` bounds its batches.

        Raises:
            EngineError: for a model of another kind.
        """
        from zo_lightning.models import load_model

        model = load_model(layout.model, dtype=self.dtype, device=self.device)
        self.adopt(model, layout, direction, update, bank)

    def adopt(self, model: Any, layout: Layout, direction: Direction, update: Update, bank: BankSpec) -> None:
        """Open on a model that is in memory, on this backend's device and of its type; modules of it are replaced.

        Raises:
            EngineError: for a model of another kind.
        """
        held = LowRankBank(bank, layout, direction, update, fold=self._fold, device=self.device)
        exact = self.device.type == "cpu" and model.dtype == torch.float32
        foldable = can_prepack(self.device, model.dtype) and not layout.has_vectors
        fold = self._fold_working if self._fold_stages and foldable else None
        self._factors: Factors = ExactFactors(held, fold) if exact else SharedFactors(held, model.dtype)
        self._model = PackedModel(model, layout, self._factors, max_tokens=self._max_tokens)
        self._bank = held

    @torch.inference_mode()
    def evaluate(self, requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
        """Answers in order; all requests run together."""
        for request in requests:
            self._opened().check_version(request.point.version)
            if not isinstance(request.objective, Score):
                raise ConfigError("`backend=packed` scores options only: choose an objective that scores")
        if not requests:
            return ()
        start = time.perf_counter()
        self._factors.program([request.point for request in requests])
        groups = list(dict.fromkeys(keys_of(request.point) for request in requests))
        order = sorted(range(len(requests)), key=lambda i: groups.index(keys_of(requests[i].point)))
        asked = [(requests[i].point, example) for i in order for example in requests[i].examples]
        trees = {example: tree_of(example) for example in dict.fromkeys(example for _, example in asked)}
        scored = self._model.score([trees[example] for _, example in asked], [point for point, _ in asked])
        seconds, remaining = (time.perf_counter() - start) / len(requests), iter(scored)
        answers = {}
        for i in order:
            examples, objective = requests[i].examples, requests[i].objective
            assert isinstance(objective, Score)
            logprobs = list(islice(remaining, len(examples)))
            tokens = sum(len(trees[example].tokens) for example in examples)
            answers[i] = observe(objective, examples, logprobs, tokens=tokens, seconds=seconds)
        return tuple(answers[i] for i in range(len(requests)))

    def infer(self, *groups: Sequence[Example]) -> list[tuple[float, ...]]:
        """Option log-probabilities of every example, by the base alone: plain inference.

        Args:
            groups: what to ask, all at once; groups share nothing, as parameter points do not.
        """
        self._opened()
        return self._model.score([tree_of(example) for group in groups for example in group])

    def commit(self, record: StepRecord) -> None:
        """Apply one record to the bank."""
        changed = self._opened().commit(record)
        self._factors.changed(changed)

    def snapshot(self) -> dict[str, Any]:
        """The bank's snapshot; with merged weights, those too."""
        snapshot = self._opened().snapshot()
        if self._opened().num_merged:
            snapshot["merged"] = [weight.read().cpu().clone() for weight in self._trained()]
        return snapshot

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot bit by bit."""
        self._opened().load(snapshot)
        self._factors.changed(None)
        for weight, merged in zip(self._trained(), snapshot.get("merged", ()), strict=False):
            weight.write(merged.to(weight.read()))

    def digest(self) -> BaseDigest:
        """Digest of all base weights.

        Raises:
            EngineError: if it did not cover every parameter of the model.
        """
        expected = self._opened().layout.num_parameters
        named = [(name, weight.read()) for name, weight in self._model.weights.items()]
        covered = sum(parameter.numel() for _, parameter in named)
        if covered != expected:
            raise EngineError(f"the model shows {covered} parameters, its layout says {expected}")
        return BaseDigest(hex=digest_weights(named), num_parameters=covered)

    def close(self) -> None:
        """Drop the model. Idempotent."""
        if self._bank is not None:
            del self._model, self._factors
            self._bank = None

    def _opened(self) -> LowRankBank:
        if self._bank is None:
            raise EngineError("the packed backend is not open")
        return self._bank

    def _trained(self) -> list[Weight]:
        return [self._model.weights[matrix.parameter] for matrix in self._opened().layout.matrices]

    def _fold_working(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        bank = self._opened()
        for weight, rows, cols in zip(self._trained(), bank.row_spans, bank.col_spans, strict=True):
            assert isinstance(weight, PrepackedWeight)
            weight.fold(left_OC[rows], right_IC[cols])

    def _fold(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        bank = self._opened()
        for weight, rows, cols in zip(self._trained(), bank.row_spans, bank.col_spans, strict=True):
            weight.add(left_OC[rows], right_IC[cols])
