"""A sweep: a job fails for itself alone, and the sweep ends with a table and an exit code that tells."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from zo_lightning.cli.errors import FAILED, reported
from zo_lightning.cli.folder import FAILURE, write_text
from zo_lightning.config import register
from zo_lightning.config.resolvers import ABOUT
from zo_lightning.errors import ConfigError, ZOError

log = logging.getLogger(__name__)
file_log = logging.getLogger("job")  # only the job's log file shows it
register()  # the process of a launcher reads this module first


def run_job(train: Callable[[], float | None], folder: Path, overrides: Sequence[str]) -> float | None:
    """Train, or note in the job's folder why not.

    A failure does not leave this function: Hydra's sweepers would stop after it, at once or at the end of a batch, and
    its launchers send it between processes, which not every exception survives.

    Returns:
        The optimized metric; None if the job failed, which Optuna takes as a failed trial (it stops at nan).
    """
    try:
        return train()
    except Exception as error:
        file_log.error("failed with %s", list(overrides), exc_info=error)
        note_failure(folder, overrides, error)
        what = str(error) if isinstance(error, ZOError) else f"{type(error).__name__}: {error}"
        log.error("error: %s\nthe job failed; see %s", what, folder / FAILURE)
        return None


def note_failure(folder: Path, overrides: Sequence[str], error: Exception) -> None:
    """Write ``FAILED``: which job it was and why it failed, with a traceback unless the user can act on it."""
    about: dict[str, Any] = {"overrides": list(overrides), "error": type(error).__name__, "message": str(error)}
    if not isinstance(error, ZOError):
        about["traceback"] = "".join(traceback.format_exception(error))
    write_text(folder / FAILURE, OmegaConf.to_yaml(OmegaConf.create({"failure": about}).failure))


class Sweep(Callback):
    """What Hydra calls before and after the jobs of a sweep."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Refuse a folder that holds a sweep already."""
        folder = Path(config.hydra.sweep.dir)
        with reported():
            if any(folder.glob(f"*/{ABOUT}")):
                raise ConfigError(f"{folder} holds a sweep already: set another `hydra.sweep.dir`")

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print the jobs, and leave with an exit code that says if one failed."""
        if config.hydra.job.config_name != "train":
            return
        from zo_lightning.cli.sweep_jobs import print_jobs, read_jobs

        folder = Path(config.hydra.sweep.dir)
        jobs = read_jobs(folder)
        print_jobs(jobs, str(folder))
        if any(job.status != "done" for job in jobs):
            raise SystemExit(FAILED)
