"""``zo-train``: compose, check, train, report."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from zo_lightning.cli.errors import reported
from zo_lightning.cli.folder import CHECKPOINT, claimed, resolve_checkpoint
from zo_lightning.cli.overrides import with_saved_overrides
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config import register
from zo_lightning.errors import EngineError

if TYPE_CHECKING:
    from zo_lightning.cli.report import Results
    from zo_lightning.cli.session import Session

log = logging.getLogger(__name__)
register()


def main() -> None:
    """Compose with the overrides of the run that ``ckpt_path`` names, if any, so that naming it is enough."""
    with reported():
        sys.argv[1:] = with_saved_overrides(sys.argv[1:])
        _main()


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="train")
def _main(config: DictConfig) -> float | None:
    hydra_config = HydraConfig.get()
    sweep = hydra_config.mode == RunMode.MULTIRUN
    return run(config, overrides=list(hydra_config.overrides.task), sweep=sweep)


def run(config: DictConfig, *, overrides: Sequence[str] = (), sweep: bool = False) -> float | None:
    """Claim the run's folder and train, with errors as one message; returns ``optimized_metric`` for sweepers."""
    with reported(reraise=sweep):
        checkpoint, folder = resolve_checkpoint(config, Path(config.paths.root))
        if folder is not None:
            config.paths.output_dir = str(folder)
        output = Path(config.paths.output_dir)
        with claimed(output, config, resume=folder is not None, overrides=overrides):
            return train(config, output, checkpoint)


def train(config: DictConfig, output: Path, checkpoint: Path | None) -> float | None:
    """Train and report. The engine lives as long as this call."""
    quiet_libraries()
    from zo_lightning.cli.session import build

    session = build(config)
    log.info("%s", session.describe())
    with session.engine():
        results, metrics = _measured(session, checkpoint)
    _report(f"{config.model.name} on {config.task.name}", output, results)
    if not results.base_digest_unchanged and config.bank.policy.value != "merge":
        raise EngineError("the base weights changed, though no policy may write them: the results cannot be trusted")
    if config.optimized_metric not in metrics:
        log.warning("`optimized_metric`=%s was not measured; there are %s", config.optimized_metric, sorted(metrics))
    return metrics.get(config.optimized_metric)


def _measured(session: Session, checkpoint: Path | None) -> tuple[Results, dict[str, float]]:
    from zo_lightning.cli.report import Results, Scores

    module, trainer = session.module, session.trainer
    digest = module.backend.digest()
    before = session.test()
    log.info("before training: test accuracy %.3f, loss %.3f", before["test/accuracy"], before["test/loss"])
    session.fit(checkpoint)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    after = session.test()
    results = Results(
        steps=trainer.global_step,
        skipped_steps=trainer.optimizers[0].param_groups[0]["num_skipped"],
        before=Scores.of(before, session.num_scored),
        after=Scores.of(after, session.num_scored),
        seconds_per_step=session.throughput.seconds_per_step,
        tokens_per_second=session.throughput.tokens_per_second,
        base_digest=digest.hex,
        base_digest_unchanged=module.backend.digest() == digest,
        num_parameters=digest.num_parameters,
        truncated_examples=session.num_truncated,
    )
    return results, metrics | after


def _report(title: str, output: Path, results: Results) -> None:
    from zo_lightning.cli.report import draw_curve, print_card

    results.write(output)
    curve = draw_curve(output, title, results)
    print_card(title, results, output, [output / "results.json", *([curve] if curve else []), output / CHECKPOINT])


if __name__ == "__main__":
    main()
