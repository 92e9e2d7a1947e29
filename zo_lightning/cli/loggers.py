"""Loggers of a run: there or refused early, told the configuration and the results, and closed with the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf

from zo_lightning.config import instantiate
from zo_lightning.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from zo_lightning.cli.report import Results, Scores

_EXTRAS = {"WandbLogger": "wandb", "TensorBoardLogger": "tensorboard"}  # what each needs: module and extra


def build_loggers(config: DictConfig) -> list[Logger]:
    """The configured loggers; none of them has begun to write.

    Raises:
        ConfigError: if the package of one is not installed.
    """
    nodes = [node for node in (config.logger or {}).values() if node]
    for node in nodes:
        module = _EXTRAS.get(node["_target_"].rpartition(".")[2])
        if module is not None and find_spec(module) is None:
            raise ConfigError(
                f"`logger` needs {module}, which is not installed: `pip install {module}`, "
                "or choose another one, such as `logger=csv`"
            )
    return [instantiate(node) for node in nodes]


@contextmanager
def recording(loggers: Sequence[Logger], config: DictConfig) -> Iterator[None]:
    """Begin every logger with the run's configuration, and end W&B's runs with it.

    A W&B run that is not ended would take the metrics of the next job of a sweep.

    Raises:
        ConfigError: if W&B cannot begin, for example without a login.
    """
    from lightning.pytorch.loggers import WandbLogger

    plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, enum_to_str=True))
    wandb_loggers = [logger for logger in loggers if isinstance(logger, WandbLogger)]
    status = 1
    try:
        for wandb_logger in wandb_loggers:
            _begin(wandb_logger)
        for logger in loggers:
            logger.log_hyperparams(plain)
        yield
        status = 0
    finally:
        for wandb_logger in wandb_loggers:
            if wandb_logger._experiment is not None:  # `experiment` would begin one
                wandb_logger.experiment.finish(exit_code=status)


def record_base(loggers: Sequence[Logger], before: Scores) -> None:
    """Log the test of the frozen base as that of step 0, whenever it was made."""
    for logger in loggers:
        logger.log_metrics({"test/loss": before.loss, "test/accuracy": before.accuracy}, step=0)
        logger.save()


def record_results(loggers: Sequence[Logger], results: Results, curve: Path | None) -> None:
    """Put the numbers of the result card into W&B's summary, and the card and the curve into its charts."""
    from lightning.pytorch.loggers import WandbLogger

    numbers = asdict(results)
    before, after = numbers.pop("before"), numbers.pop("after")
    rows = [[name, before[name], after[name]] for name in after]
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.log_table("result_card", columns=["test", "before", "after"], data=rows, step=results.steps)
            if curve is not None:
                logger.log_image("curve", [str(curve)], step=results.steps)
            logger.experiment.summary.update({**numbers, "before": before, "after": after})


def _begin(logger: Any) -> None:
    import wandb

    try:
        _ = logger.experiment
    except wandb.errors.Error as error:
        raise ConfigError(
            f"W&B does not begin: {error}: `wandb login`, set WANDB_MODE=offline, or choose `logger=csv`"
        ) from error
