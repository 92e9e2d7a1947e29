"""``zo-goodput advise``: sentences about how to checkpoint a run, and one line of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

import hydra
from omegaconf import DictConfig

from zo_lightning.cli.errors import reported
from zo_lightning.goodput.advice import advise
from zo_lightning.goodput.measured import Measured, measured

_QUESTION = ("run_dir", "k", "target", "rto_seconds", "paths")  # the other keys are figures


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="advise")
def main(config: DictConfig) -> None:
    """Compose and answer."""
    run(config)


def run(config: DictConfig) -> None:
    """Print what to do and why, and last one line of JSON."""
    with reported():
        found = Measured() if config.run_dir is None else measured(Path(config.run_dir).expanduser())
        figures = {str(key): value for key, value in config.items() if key not in _QUESTION}
        target = None if config.target is None else config.target.value
        advice = advise(found.given(**figures), k=config.k, target=target, rto_seconds=config.rto_seconds)
        from rich.console import Console

        for sentence in advice.sentences:
            print(fill(sentence, width=Console().width, break_on_hyphens=False, break_long_words=False))
        print(json.dumps({"command": "advise", "run_dir": config.run_dir, **advice.facts()}))
