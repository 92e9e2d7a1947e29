"""``zo-train``: compose, check, train, report."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from zo_lightning.checkpoint.places import CHECKPOINT
from zo_lightning.cli.errors import reported
from zo_lightning.cli.folder import claimed, resolve_checkpoint
from zo_lightning.cli.launchers import check_launchers
from zo_lightning.cli.loggers import build_loggers, record_base, record_results, recording
from zo_lightning.cli.overrides import with_saved_overrides
from zo_lightning.cli.ranks import all_ranks, check_ranks, follow, is_follower
from zo_lightning.cli.supervise import is_wanted, spelled_out, supervise
from zo_lightning.cli.sweep import run_job
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config import register
from zo_lightning.config.resolvers import ABOUT
from zo_lightning.errors import ConfigError, EngineError
from zo_lightning.supervisor import connect, heartbeat

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from zo_lightning.cli.report import Results
    from zo_lightning.cli.session import Session
    from zo_lightning.core.types import BaseDigest

log = logging.getLogger(__name__)
register()

_TAKEOVER = 10.0  # seconds in which all that a dead process has started is gone, too


def main() -> None:
    """Compose with the overrides of the run that ``ckpt_path`` names, if any, so that naming it is enough."""
    if is_follower():
        return follow()
    with reported():
        connect()
        check_launchers(sys.argv[1:])
        sys.argv[1:] = with_saved_overrides(spelled_out(sys.argv[1:]))
        _main()


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="train")
def _main(config: DictConfig) -> float | None:
    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    if hydra_config.mode == RunMode.MULTIRUN:
        config.extras.print_config = False
        return run_job(lambda: _run(config, overrides, sweep=True), Path(hydra_config.runtime.output_dir), overrides)
    with reported():
        _check_is_run(hydra_config.runtime.choices.get("sweep"), config)
        if is_wanted(config):
            raise SystemExit(supervise(config, sys.argv[1:]))
    return run(config, overrides=overrides)


def _check_is_run(sweep: str | None, config: DictConfig) -> None:
    if sweep is not None and config.ckpt_path is None:  # a job that goes on has the settings of its sweep
        raise ConfigError(f"`sweep={sweep}` is a set of runs: add `-m`")


def run(config: DictConfig, *, overrides: Sequence[str] = ()) -> float | None:
    """Claim the run's folder and train, with errors as one message; returns ``optimized_metric``."""
    with reported():
        return _run(config, overrides)


def _run(config: DictConfig, overrides: Sequence[str], *, sweep: bool = False) -> float | None:
    check_ranks(config, sweep=sweep)
    if sweep and is_wanted(config):
        raise ConfigError("`supervise` watches one run: leave it out of a sweep")
    if heartbeat().is_spare:
        return stand_by(config, overrides)
    checkpoint, folder = resolve_checkpoint(config, Path(config.paths.root))
    if folder is not None:
        config.paths.output_dir = str(folder)
    output = Path(config.paths.output_dir)
    goes_on = folder is not None or (heartbeat().goes_on and (output / ABOUT).exists())
    patience = _TAKEOVER if heartbeat().goes_on else 0.0
    with claimed(output, config, resume=goes_on, overrides=overrides, patience=patience):
        return train(config, output, checkpoint, resume=goes_on)


def train(config: DictConfig, output: Path, checkpoint: Path | None, *, resume: bool = False) -> float | None:
    """Train and report. The engine lives as long as this call."""
    quiet_libraries()
    from zo_lightning.cli.config_tree import show_config
    from zo_lightning.cli.session import build

    show_config(config, output, show=config.extras.print_config)
    loggers = build_loggers(config)
    if config.training.kind.value == "adamw":
        from zo_lightning.cli.first_order import train_by_gradients

        with recording(loggers, config):
            return train_by_gradients(config, output, checkpoint, loggers)
    session = build(config, loggers)
    log.info("%s", session.describe())
    with recording(loggers, config):
        with all_ranks(config, checkpoint, "train"), session.engine():
            results = measured(session, Base.of(session), checkpoint, config.optimized_metric)
        return concluded(config, output, loggers, results, resumed=resume or checkpoint is not None)


def stand_by(config: DictConfig, overrides: Sequence[str]) -> float | None:
    """Be a supervisor's spare: open the engine, wait, and take over the run in the folder that ``ckpt_path`` names."""
    quiet_libraries()
    from zo_lightning.cli.session import build

    output = Path(config.ckpt_path)
    config.paths.output_dir = str(output)
    loggers = build_loggers(config)
    session = build(config, loggers)
    with session.engine():
        base = Base.of(session)
        session.warm_up()
        heartbeat().stand_by()
        checkpoint, _ = resolve_checkpoint(config, Path(config.paths.root))
        claim = claimed(output, config, resume=True, overrides=overrides, patience=_TAKEOVER)
        with claim, recording(loggers, config):
            results = measured(session, base, checkpoint, config.optimized_metric)
            return concluded(config, output, loggers, results, resumed=True)


def concluded(
    config: DictConfig, output: Path, loggers: Sequence[Logger], results: Results, *, resumed: bool
) -> float | None:
    """Write and show the results of a run that is at its end."""
    if resumed and not results.seconds_per_step:
        log.warning("no step was left to train: the run is at step %d already, see `trainer.max_steps`", results.steps)
        results = results.with_training_of(output)
    if not (output / "results.json").exists():  # a run that goes on after its end has logged it
        record_base(loggers, results.before)
    curve = _report(f"{config.model.name} on {config.task.name}", output, results)
    record_results(loggers, results, curve)
    if not results.base_digest_unchanged and config.bank.policy.value != "merge":
        raise EngineError("the base weights changed, though no policy may write them: the results cannot be trusted")
    return results.optimized_metric.value


@dataclass(frozen=True, slots=True)
class Base:
    """The frozen base as the engine holds it before the run."""

    digest: BaseDigest
    snapshot: dict[str, Any]

    @staticmethod
    def of(session: Session) -> Base:
        """Of an engine that has just been opened."""
        return Base(session.module.backend.digest(), session.module.backend.snapshot())


def measured(session: Session, base: Base, checkpoint: Path | None, optimized: str) -> Results:
    """Train, then test the frozen base and what was learned, on every rank.

    The base waits so that training begins at once; one that is written during the run is tested first.
    """
    from zo_lightning.cli.report import Metric, Results, Scores

    module, trainer = session.module, session.trainer
    before = _base_scores(session, base.snapshot) if module.bank.policy == "merge" else None
    session.fit(checkpoint)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    before = before or _base_scores(session, base.snapshot)
    after = session.test()
    metrics |= after
    if optimized not in metrics:
        log.warning(
            "`optimized_metric`=%s was not measured (validations: `trainer.val_check_interval`); there are %s",
            optimized,
            ", ".join(sorted(metrics)),
        )
    return Results(
        steps=trainer.global_step,
        skipped_steps=trainer.optimizers[0].param_groups[0]["num_skipped"],
        before=Scores.of(before, session.num_scored),
        after=Scores.of(after, session.num_scored),
        seconds_per_step=session.throughput.seconds_per_step,
        tokens_per_second=session.throughput.tokens_per_second,
        base_digest=base.digest.hex,
        base_digest_unchanged=module.backend.digest() == base.digest,
        num_parameters=base.digest.num_parameters,
        truncated_examples=session.num_truncated,
        optimized_metric=Metric(name=optimized, value=metrics.get(optimized)),
    )


def _base_scores(session: Session, base: dict[str, Any]) -> dict[str, float]:
    """Test with the factors of a run that has not begun; the current ones come back afterwards."""
    log.info("scoring the base")
    backend = session.module.backend
    learned = backend.snapshot()
    backend.load(base)
    scores = session.test(logged=False)
    backend.load(learned)
    log.info("before training: test accuracy %.3f, loss %.3f", scores["test/accuracy"], scores["test/loss"])
    return scores


def _report(title: str, output: Path, results: Results) -> Path | None:
    from zo_lightning.cli.report import draw_curve, print_card

    results.write(output)
    curve = draw_curve(output, title, results)
    print_card(title, results, output, [output / "results.json", *([curve] if curve else []), output / CHECKPOINT])
    return curve


if __name__ == "__main__":
    main()
