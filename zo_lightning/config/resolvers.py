"""What the configuration asks of the process: ``${pid:}`` and ``${run:...}``."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

ABOUT = "run.json"  # what a run is, in its folder


def sweep_job() -> dict[str, str]:
    """The sweep that this process runs a job of, by the last two parts of its folder, and the job's number."""
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return {}
    hydra = HydraConfig.get()
    return {"sweep": "_".join(Path(hydra.sweep.dir).parts[-2:]), "job": str(hydra.job.num)}


def config_dir() -> str | None:
    """The folder that ``--config-dir`` added to where options are looked for."""
    if not HydraConfig.initialized():
        return None
    sources = HydraConfig.get().runtime.config_sources
    return next((source.path for source in sources if source.provider == "command-line"), None)


def about_run(what: str, folder: str | None) -> str | None:
    """What the folder of a run knows of it: ``id``, ``sweep`` or ``job``; None before the folder is claimed."""
    about = Path(folder or "") / ABOUT
    return json.loads(about.read_text()).get(what) if about.is_file() else None


def register_resolvers() -> None:
    """Make the resolvers known to OmegaConf."""
    # cached: processes of a launcher get the value with the configuration, and name the same folder of the sweep
    OmegaConf.register_new_resolver("pid", os.getpid, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("run", about_run, replace=True)
