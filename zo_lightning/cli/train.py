"""``zo-train``: compose, check, train, report."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig

from zo_lightning.cli.errors import reported
from zo_lightning.cli.folder import CHECKPOINT, claimed, resolve_checkpoint
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config import register

if TYPE_CHECKING:
    from zo_lightning.cli.report import Results
    from zo_lightning.cli.session import Session

log = logging.getLogger(__name__)
register()


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="train")
def main(config: DictConfig) -> float | None:
    """Run one job; returns ``optimized_metric`` for sweepers."""
    return run(config)


def run(config: DictConfig) -> float | None:
    """Claim the run's folder and train, with errors as one message."""
    with reported():
        checkpoint, folder = resolve_checkpoint(config, Path(config.paths.root))
        if folder is not None:
            config.paths.output_dir = str(folder)
        output = Path(config.paths.output_dir)
        with claimed(output, config, resume=checkpoint is not None):
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
    return metrics.get(config.optimized_metric)


def _measured(session: Session, checkpoint: Path | None) -> tuple[Results, dict[str, float]]:
    from zo_lightning.cli.report import Results, Scores

    module, trainer, data = session.module, session.trainer, session.data
    digest = module.backend.digest()
    before = session.test()
    log.info("before training: test accuracy %.3f, loss %.3f", before["test/accuracy"], before["test/loss"])
    session.fit(checkpoint)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    after = session.test()
    results = Results(
        steps=trainer.global_step,
        skipped_steps=trainer.optimizers[0].param_groups[0]["num_skipped"],
        before=Scores.of(before, len(data.test)),
        after=Scores.of(after, len(data.test)),
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
