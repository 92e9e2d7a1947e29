"""Schemas of the configuration: a wrong type or an unknown key fails while composing, before anything heavy.

A group's YAML starts from its schema (``/base_*@_here_``). Schemas stand outside the groups, so that ``--help`` and the
shell's completion list only what a person may choose. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from zo_lightning.config.goodput import AdviseConf, GoodputConf, ScenarioConf
from zo_lightning.config.resolvers import register_resolvers


class Loss(Enum):
    """Losses of the scoring objective."""

    candidates = "candidates"
    gold = "gold"


class Policy(Enum):
    """What a full bank does."""

    cyclic = "cyclic"
    merge = "merge"
    refuse = "refuse"


class Format(Enum):
    """What an export writes."""

    peft = "peft"
    merged = "merged"


class Trainable(Enum):
    """Which parameters a run changes: the decoder's linear layers, which adapters carry, or all."""

    linear = "linear"
    all = "all"


class Training(Enum):
    """How a run trains: forward passes alone, or backpropagation and a torch optimizer."""

    zo = "zo"
    adamw = "adamw"


@dataclass
class TrainingConf:
    """How a run trains; the optimizer is that of ``adamw``."""

    kind: Training = Training.zo
    optimizer: dict[str, Any] = field(default_factory=dict)


@dataclass
class ObjectiveConf:
    """What a request scores."""

    loss: Loss = Loss.candidates


@dataclass
class DataConf:
    """Batches, in examples."""

    batch_size: int = 16
    eval_batch_size: int = 64


@dataclass
class BankConf:
    """The factor bank; without a capacity it holds every stage of the run, up to 64 rank columns."""

    capacity: int | None = None
    policy: Policy = Policy.cyclic


@dataclass
class ExtrasConf:
    """What a run shows and is remembered by."""

    print_config: bool = True
    tags: list[str] = field(default_factory=list)


@dataclass
class SuperviseConf:
    """A parent that starts the run again; ``supervise=true`` is short for ``supervise.enabled=true``."""

    enabled: bool = False
    spare: bool = False
    max_restarts: int = 20
    max_without_progress: int = 3
    pause: float = 1.0
    start_timeout: float = 900.0
    hang_floor: float = 10.0
    hang_factor: float = 10.0


@dataclass
class RunConf:
    """The root of a run."""

    seed: int = 42
    ckpt_path: str | None = None
    max_skipped: int = 10
    optimized_metric: str = "val/loss"
    training: TrainingConf = field(default_factory=TrainingConf)
    objective: ObjectiveConf = field(default_factory=ObjectiveConf)
    data: DataConf = field(default_factory=DataConf)
    bank: BankConf = field(default_factory=BankConf)
    supervise: SuperviseConf = field(default_factory=SuperviseConf)
    model: Any = MISSING
    task: Any = MISSING
    direction: Any = MISSING
    query: Any = MISSING
    estimator: Any = MISSING
    update: Any = MISSING
    scheduler: Any = MISSING
    backend: Any = MISSING
    trainer: Any = MISSING
    checkpoint: Any = None
    callbacks: Any = field(default_factory=dict)
    logger: Any = field(default_factory=dict)
    failure: Any = field(default_factory=dict)
    paths: Any = MISSING
    extras: Any = MISSING


@dataclass
class ExportConf(RunConf):
    """The root of an export: what a run is, and what to make of it."""

    format: Format = Format.peft
    out: str | None = None


@dataclass
class BenchConf(RunConf):
    """The root of a benchmark: what a run is, and how to measure it."""

    command: str = MISSING
    rounds: int = 20
    warm_up: int = 3
    dense: Any = MISSING
    packed: Any = MISSING
    without: list[str] = field(default_factory=list)
    data_dir: str | None = None
    tasks: dict[str, Any] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    points: list[int] = field(default_factory=list)
    starts: int = 3


@dataclass
class ReplayConf(ExportConf):
    """The root of a replay: what a run is, which step of it, and what to make of that."""

    command: str = MISSING
    other: str | None = None
    start: str | None = None
    step: int | None = None
    without: list[int] = field(default_factory=list)


class Part(Enum):
    """What a drill proves."""

    zo = "zo"
    adamw = "adamw"
    flips = "flips"
    crash_images = "crash_images"


class LivesConf(Enum):
    """How a life starts; ``auto`` forks it unless it starts an engine."""

    auto = "auto"
    fork = "fork"
    command = "command"


@dataclass
class DrillConf(RunConf):
    """The root of a drill: the run that is killed, and how."""

    parts: list[Part] = field(default_factory=list)
    kills: int = 10
    adamw_kills: int = 3
    adamw: list[str] = field(default_factory=list)
    drill_seed: int = 0
    lives: LivesConf = LivesConf.auto
    images: int = 1000
    manifests: int = 200


@dataclass
class ModelConf:
    """A language model; ``path`` is a local folder or a name on the hub."""

    name: str = MISSING
    path: str | None = None
    source: str = "hub"
    revision: str | None = None
    max_length: int | None = None
    cache_dir: str | None = None
    trainable: Trainable = Trainable.linear
    lr: float = 1e-6  # LoZO's, for direction.scale=none


@dataclass
class TextTaskConf:
    """A task of texts and labels, by template."""

    _target_: str = "zo_lightning.tasks.TextTask"
    name: str = MISSING
    template: str = MISSING
    verbalisers: Any = None  # a mapping whose keys may be numbers or text
    candidates: Any = None  # a field or a list of fields
    option_template: str = " {{ candidate }}"
    label_field: str = "label"
    data_dir: str | None = None
    train_file: str | None = None
    test_file: str | None = None
    hub_path: str | None = None
    hub_name: str | None = None
    hub_validation_split: str = "validation"
    num_train: int = 1000
    num_dev: int = 500
    num_test: int = 1000
    sampling: str = "lozo"
    test_sampling: str = "lozo"
    sampling_seed: int = 0
    truncate: str = "error"


@dataclass
class SentimentTaskConf:
    """The built-in task, whose sentences the project composes."""

    _target_: str = "zo_lightning.tasks.SentimentTask"
    name: str = "sentiment"
    num_train: int = 1000
    num_dev: int = 200
    num_test: int = 400
    sampling_seed: int = 0
    truncate: str = "error"


@dataclass
class LowRankConf:
    """Gaussian low-rank directions."""

    _target_: str = MISSING
    rank: int = 2
    refresh_every: int = 50
    scale: str = "none"
    refresh_update: str = "paper"


@dataclass
class AntitheticConf:
    """Antithetic pairs."""

    _target_: str = MISSING
    eps: float = 1e-3


@dataclass
class SpsaConf:
    """Simultaneous perturbation."""

    _target_: str = MISSING


@dataclass
class SgdConf:
    """Plain descent."""

    _target_: str = MISSING
    lr: float = MISSING
    weight_decay: float = 0.0


@dataclass
class VllmConf:
    """The vLLM backend."""

    _target_: str = MISSING
    dtype: str = "auto"
    process: str = "inline"
    max_points: int = 2
    block_size: int = 32
    max_length: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_gib: float | None = None
    fold_stages: bool = True
    engine: dict[str, Any] = field(default_factory=dict)


@dataclass
class DenseConf:
    """The dense backend."""

    _target_: str = MISSING
    dtype: str = "auto"
    device: str = "auto"
    max_rows: int = 64


@dataclass
class PackedConf:
    """The packed backend."""

    _target_: str = MISSING
    dtype: str = "auto"
    device: str = "auto"
    max_tokens: int = 8192
    fold_stages: bool = True


@dataclass
class FakeConf:
    """The fake backend."""

    _target_: str = MISSING
    max_points: int = 8
    max_rank: int = 512


@dataclass
class DrainConf:
    """How a run by backpropagation is kept."""

    mode: str = "auto"
    target: str = "newest"
    rollback: str = "guarded"
    tolerance: float = 1e-4
    tax: float = 0.03
    num_shards: int | None = None


@dataclass
class ResilientCheckpointConf:
    """Journal and snapshots."""

    _target_: str = MISSING
    dirpath: str = MISSING
    fsync: str = "overlapped"
    every_n_steps: int | None = None
    keep: int = 2
    mirrors: list[str] = field(default_factory=list)
    max_stall: float = 1.0
    drain: DrainConf = field(default_factory=DrainConf)


_SCHEMAS = {
    "base_run": RunConf,
    "base_model": ModelConf,
    "base_text_task": TextTaskConf,
    "base_sentiment_task": SentimentTaskConf,
    "base_low_rank": LowRankConf,
    "base_antithetic": AntitheticConf,
    "base_spsa": SpsaConf,
    "base_sgd": SgdConf,
    "base_vllm": VllmConf,
    "base_dense": DenseConf,
    "base_packed": PackedConf,
    "base_fake": FakeConf,
    "base_resilient_checkpoint": ResilientCheckpointConf,
    "base_extras": ExtrasConf,
    "base_training": TrainingConf,
    "base_advise": AdviseConf,
    "base_goodput": GoodputConf,
    "base_goodput_scenario": ScenarioConf,
}


def register() -> None:
    """Make schemas and resolvers known to Hydra. Idempotent."""
    register_resolvers()
    store = ConfigStore.instance()
    for name, node in _SCHEMAS.items():
        store.store(name=name, node=node, provider="zo_lightning")
    store.store(name="base_export", node=_on_top(ExportConf, RunConf), provider="zo_lightning")
    store.store(name="base_replay", node=_on_top(ReplayConf, RunConf), provider="zo_lightning")
    store.store(name="base_bench", node=_on_top(BenchConf, RunConf), provider="zo_lightning")
    store.store(name="base_drill", node=_on_top(DrillConf, RunConf), provider="zo_lightning")


def _on_top(schema: type, base: type) -> DictConfig:
    """A schema that is merged into a composed ``base`` and leaves all values of that as they are."""
    node: DictConfig = OmegaConf.structured(schema)
    for name in base.__dataclass_fields__:  # type: ignore[attr-defined]
        node[name] = MISSING
    return node
