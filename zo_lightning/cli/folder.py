"""The folder of a run: one run at a time, and nothing already written is lost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from zo_lightning.errors import ConfigError

CHECKPOINT = Path("checkpoints") / "last.ckpt"
_ABOUT = "run.json"


def config_digest(config: DictConfig) -> str:
    """Identifies what a run trains: its configuration but for where it is written and resumed from."""
    kept = [str(key) for key in config if key not in ("paths", "ckpt_path", "callbacks", "logger")]
    plain = OmegaConf.masked_copy(config, kept)
    plain.trainer.default_root_dir = None
    return hashlib.sha256(OmegaConf.to_yaml(plain, resolve=True, sort_keys=True).encode()).hexdigest()[:16]


def resolve_checkpoint(config: DictConfig, root: Path) -> tuple[Path | None, Path | None]:
    """What ``ckpt_path`` means: a file forks from it, a run's folder goes on in place, ``last`` finds the folder.

    Returns:
        The checkpoint file and the folder to go on in; None where there is none.

    Raises:
        ConfigError: if there is nothing there.
    """
    if config.ckpt_path is None:
        return None, None
    if config.ckpt_path == "last":
        folder = _newest(root, config_digest(config))
        return folder / CHECKPOINT, folder
    path = Path(config.ckpt_path).expanduser()
    if path.is_file():
        return path, None
    if (path / CHECKPOINT).is_file():
        return path / CHECKPOINT, path
    what = f"the folder holds no {CHECKPOINT}" if path.is_dir() else "there is no such file or folder"
    raise ConfigError(f"`ckpt_path={config.ckpt_path}`: {what}; name a .ckpt file, a run's folder, or `last`")


def _newest(root: Path, digest: str) -> Path:
    found = [
        about.parent
        for about in (root / "outputs").glob(f"*/*/{_ABOUT}")
        if json.loads(about.read_text())["config_digest"] == digest and (about.parent / CHECKPOINT).is_file()
    ]
    if not found:
        raise ConfigError(f"`ckpt_path=last`: no run with this configuration has a checkpoint under {root / 'outputs'}")
    return max(found, key=lambda folder: (folder / CHECKPOINT).stat().st_mtime)


@contextmanager
def claimed(folder: Path, config: DictConfig, *, resume: bool) -> Iterator[None]:
    """Hold a run's folder for the length of the run.

    Raises:
        ConfigError: if another run holds it, or if it holds a run already that this one does not resume.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(f"another run is writing into {folder}: set another `hydra.run.dir`") from None
    try:
        if not resume and (folder / CHECKPOINT).exists():
            raise ConfigError(
                f"{folder} holds a run already: go on with `ckpt_path={folder}` or set another `hydra.run.dir`"
            )
        (folder / _ABOUT).write_text(json.dumps({"config_digest": config_digest(config)}) + "\n")
        yield
    finally:
        lock.release()
