"""The values that travel through a step. All are frozen; none holds a tensor.

``Example -> EvalRequest -> Observation -> Estimate -> StepRecord``: only keys and scalars leave the
place where the weights live, so a step costs the trainer nothing that grows with the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSpec:
    """One trainable weight, named as the Hugging Face module that owns it, or one shard of it.

    A vector is a parameter of one dimension, named as the parameter itself, with one column: its right factor is
    (1, 0, ...), so that the first left column of a direction is a dense draw. ``first_row`` and ``first_col`` say where
    a shard begins in the whole matrix.
    """

    name: str
    rows: int
    cols: int
    first_row: int = 0
    first_col: int = 0
    vector: bool = False

    @property
    def parameter(self) -> str:
        """The name of the parameter.

        Examples:
            >>> MatrixSpec(name="model.layers.0.mlp.up_proj", rows=4, cols=2).parameter
            'model.layers.0.mlp.up_proj.weight'
        """
        return self.name if self.vector else f"{self.name}.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All trainable matrices of a model in module order: the frozen base by name, never by tensor."""

    model: str
    matrices: tuple[MatrixSpec, ...]
    num_parameters: int  # of the whole model, tied weights once: what a digest of the base must cover

    @property
    def has_vectors(self) -> bool:
        """Whether more than linear weights is trained, which adapters cannot carry."""
        return any(matrix.vector for matrix in self.matrices)

    @property
    def num_rows(self) -> int:
        """Sum of the matrices' rows: the height of the stacked left factors."""
        return sum(matrix.rows for matrix in self.matrices)

    @property
    def num_cols(self) -> int:
        """Sum of the matrices' columns: the height of the stacked right factors."""
        return sum(matrix.cols for matrix in self.matrices)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionKey:
    """Rebuilds the same direction on any device at any time.

    ``step`` and ``index`` name the left factor, ``stage`` the right factor that a stage shares.
    """

    seed: int
    step: int
    stage: int
    index: int = 0


Term = tuple[DirectionKey, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The parameters ``theta_version + sum(coefficient * direction)``; without terms, the centre.

    Examples:
        >>> Point(version=3).terms
        ()
    """

    version: int
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Token ids of a prompt and of its answer options; ``label`` indexes the right option.

    ``also_right`` are further options that count as right for accuracy; losses know ``label`` alone.
    """

    prompt: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    label: int
    also_right: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the data loader yields and an ``EvalRequest`` evaluates."""

    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score the answer options of each example, teacher-forced.

    ``candidates``: cross entropy over the options' mean token log-probabilities (LoZO's
    classification loss). ``gold``: token-mean negative log-likelihood of the right option.
    """

    loss: Literal["candidates", "gold"] = "candidates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Generate from each prompt and score the text with a named scorer (higher is better)."""

    max_tokens: int
    scorer: str
    stop: tuple[str, ...] = ()
    temperature: float = 0.0


Objective = Score | Generate


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of ``evaluate`` call to come, so that a backend can size itself.

    Batches of ``batch_size`` out of ``examples``, in any order, each asked at ``num_points`` points at once.
    """

    examples: tuple[Example, ...]
    batch_size: int
    num_points: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """Evaluate one parameter point on some examples: the whole contract with a backend."""

    point: Point
    examples: tuple[Example, ...]
    objective: Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The answer to one request. Scalars only.

    ``losses`` are per example and average with ``weights`` (1 for ``candidates``, the number of
    option tokens for ``gold``); ``scores`` are each example's option scores, for accuracy.
    """

    losses: tuple[float, ...]
    weights: tuple[float, ...]
    scores: tuple[tuple[float, ...], ...] = ()
    tokens: int = 0
    seconds: float = 0.0

    @property
    def value(self) -> float:
        """Weighted mean of the losses.

        Examples:
            >>> Observation(losses=(1.0, 4.0), weights=(2.0, 1.0)).value
            2.0
        """
        return math.fsum(l * w for l, w in zip(self.losses, self.weights, strict=True)) / math.fsum(self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A gradient estimate ``sum(coefficient * direction)`` with the loss it came from."""

    terms: tuple[Term, ...]
    loss: float

    @property
    def is_finite(self) -> bool:
        """Whether the loss and every coefficient can be applied."""
        return math.isfinite(self.loss) and all(math.isfinite(c) for _, c in self.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Everything a step changes. Committing the same records in order rebuilds the same bits.

    A skipped step (its loss was not finite) has no terms and only advances the version.
    """

    step: int
    version: int
    lr: float
    terms: tuple[Term, ...]
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BankSpec:
    """Size and policy of the factor bank; ``capacity`` counts rank columns."""

    rank: int
    capacity: int
    policy: Literal["cyclic", "merge", "refuse"] = "cyclic"

    @property
    def num_slots(self) -> int:
        """Stages that the bank holds at once.

        Examples:
            >>> BankSpec(rank=2, capacity=8).num_slots
            4
        """
        return self.capacity // self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseDigest:
    """Digest of the base weights and the number of parameters it covered."""

    hex: str
    num_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can evaluate; checked against the method before anything is opened."""

    max_points: int
    max_rank: int
    provides: frozenset[str] = field(default_factory=frozenset)  # "low_rank", "merge", "score", "generate", "vectors"
    probe_columns: bool = False  # probes take their own rank columns (half-precision factors)
