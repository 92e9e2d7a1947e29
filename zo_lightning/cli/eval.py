"""``zo-eval``: score a checkpoint on the test split with the settings it was trained with."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import hydra
from omegaconf import DictConfig

from zo_lightning.cli.errors import reported
from zo_lightning.cli.folder import write_text
from zo_lightning.cli.overrides import with_saved_overrides
from zo_lightning.cli.ranks import all_ranks, check_ranks, follow, is_follower
from zo_lightning.cli.rebuilding import named_checkpoint
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config import register

register()


def main() -> None:
    """Compose with the run's own overrides first, so that ``ckpt_path`` alone is enough."""
    if is_follower():
        return follow()
    with reported():
        sys.argv[1:] = with_saved_overrides(sys.argv[1:])
        _main()


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="eval")
def _main(config: DictConfig) -> None:
    run(config)


def run(config: DictConfig) -> None:
    """Score the checkpoint and print one line of JSON."""
    with reported():
        check_ranks(config, sweep=False)
        quiet_libraries()
        from zo_lightning.cli.report import Scores
        from zo_lightning.cli.session import build

        with named_checkpoint(config) as (checkpoint, name):
            session = build(config, loggers=[])
            with all_ranks(config, checkpoint, "test"), session.engine():
                metrics = session.test(checkpoint)
        scores = Scores.of(metrics, session.num_scored)
        text = json.dumps({"checkpoint": name, "test": asdict(scores)})
        write_text(Path(config.paths.output_dir) / "results.json", text + "\n")
        print(text)


if __name__ == "__main__":
    main()
