"""The way from released LoZO to requests, on one transformers model in this process.

Each class takes one thing away: the perturbing writes, the updating write, the row for each answer option. What then
remains, padding, goes with an engine of ragged batches.

Shape suffixes: B rows, T positions, I inputs, O outputs, R rank columns in use, V the vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from zo_lightning.backends.merging import add_product
from zo_lightning.backends.vllm.scoring import option_logprobs, trie_nodes
from zo_lightning.bench.released import Factors, ReleasedLozo, candidate_logprobs
from zo_lightning.bench.rows import left_padded, node_rows
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.objective import observe
from zo_lightning.core.types import EvalRequest, Example, Observation, Score, StepRecord

Logprobs = Sequence[Sequence[float]]


class AddedFactors:
    """Adds ``(x @ right) @ left.T`` to the outputs of a model's linear layers, for each of equal shares of the rows.

    Args:
        model: a transformers model.
        names: of the layers.
    """

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        self.lefts: Sequence[Factors] = ()  # one for each share of the rows; none adds nothing
        self.rights: Factors = {}
        for name in names:
            model.get_submodule(name).register_forward_hook(partial(self._add, name))

    def _add(self, name: str, layer: Any, inputs: tuple[torch.Tensor, ...], output_BTO: torch.Tensor) -> None:
        if not self.lefts:
            return
        dtype = output_BTO.dtype
        hidden_BTR = inputs[0] @ self.rights[name].to(dtype)
        shares = zip(output_BTO.chunk(len(self.lefts)), hidden_BTR.chunk(len(self.lefts)), self.lefts, strict=True)
        for share_BTO, share_BTR, left in shares:  # in place: no second tensor of the output's size
            share_BTO.flatten(0, 1).addmm_(share_BTR.flatten(0, 1), left[name].to(dtype).T)


class LowRankPerturbation(ReleasedLozo):
    """Factors perturb the forward passes; the update still writes dense weights."""

    def __init__(self, *args: Any, only: Sequence[str], **settings: Any) -> None:
        super().__init__(*args, only=only, **settings)
        self._added = AddedFactors(self.model, [name.removesuffix(".weight") for name in only])

    @torch.inference_mode()
    def step(self, examples: Sequence[Example], number: int) -> float:
        """Step ``number``; returns its projected gradient."""
        self.weights.begin(number, seed=number)
        lefts, rights = (_by_layer(factors) for factors in self.weights.factors())
        self._added.rights = rights
        losses = []
        for sign in (1.0, -1.0):
            self._added.lefts = [{name: sign * left for name, left in lefts.items()}]
            losses.append(self.loss(examples))
        self._added.lefts = ()
        coefficient = (losses[0] - losses[1]) / (2 * self._eps)
        self.weights.update(coefficient)
        return coefficient


class DeferredMerge:
    """The update stays in a bank's factors too, which are added to the weights at the end of a stage.

    It has the part of a backend that a step needs. ``requests`` asks next-token requests of all points in one padded
    batch, instead of a row for each answer option, point after point.

    Args:
        model: a transformers model.
        bank: of its layers.
        requests: whether next-token requests are asked.
    """

    def __init__(self, model: Any, bank: LowRankBank, *, requests: bool) -> None:
        self._model, self._bank = model, bank
        self._names = [matrix.name for matrix in bank.layout.matrices]
        self._added = AddedFactors(model, self._names)
        self._answer = self._by_requests if requests else self._by_candidates

    @property
    def version(self) -> int:
        """The bank's."""
        return self._bank.version

    @torch.inference_mode()
    def evaluate(self, requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
        """Answers in order."""
        start = time.perf_counter()
        lefts = [self._split(self._bank.point_left(request.point), self._bank.row_spans) for request in requests]
        self._added.rights = self._split(self._bank.right_IC, self._bank.col_spans)
        answers = list(self._answer(requests, lefts))
        self._added.lefts = ()
        seconds = (time.perf_counter() - start) / len(requests)
        return tuple(
            observe(_score(request), request.examples, logprobs, tokens=0, seconds=seconds)
            for request, logprobs in zip(requests, answers, strict=True)
        )

    def commit(self, record: StepRecord) -> None:
        """Apply one record to the bank."""
        self._bank.commit(record)

    @torch.inference_mode()
    def merge(self) -> None:
        """Add the bank's factors to the weights, as the end of a stage does; the bank keeps them."""
        merge([self._model.get_submodule(name).weight for name in self._names], self._bank)

    def _by_candidates(self, requests: Sequence[EvalRequest], lefts: Sequence[Factors]) -> Iterator[Logprobs]:
        for request, left in zip(requests, lefts, strict=True):
            self._added.lefts = [left]
            yield candidate_logprobs(self._model, request.examples)

    def _by_requests(self, requests: Sequence[EvalRequest], lefts: Sequence[Factors]) -> Iterator[Logprobs]:
        self._added.lefts = lefts
        rows = [row for request in requests for row in node_rows(request.examples)]
        inputs = left_padded(rows, self._model.device)
        logits_BV = self._model(**inputs, use_cache=False, logits_to_keep=1).logits[:, -1]
        answers = iter(logits_BV.float().log_softmax(-1))
        for request in requests:
            yield [_request_logprobs(example, answers) for example in request.examples]

    def _split(self, stacked: torch.Tensor, spans: Sequence[slice]) -> Factors:
        return {name: stacked[span] for name, span in zip(self._names, spans, strict=True)}


def merge(weights: Sequence[torch.Tensor], bank: LowRankBank) -> None:
    """Add a bank's factors to weights: summed in float32 and rounded once, as the backends do."""
    for weight, rows, cols in zip(weights, bank.row_spans, bank.col_spans, strict=True):
        add_product(weight, bank.left_OC[rows], bank.right_IC[cols])


def _by_layer(factors: Factors) -> Factors:
    return {name.removesuffix(".weight"): factor for name, factor in factors.items()}


def _request_logprobs(example: Example, rows: Iterator[torch.Tensor]) -> tuple[float, ...]:
    answers = {}
    for node in trie_nodes(example):
        chosen = next(rows)[list(node.children)].tolist()
        answers[node.prompt] = dict(zip(node.children, chosen, strict=True))
    return option_logprobs(example, answers)


def _score(request: EvalRequest) -> Score:
    assert isinstance(request.objective, Score)
    return request.objective
