"""The folder of a run: one run at a time, and nothing already written is lost."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

from omegaconf import DictConfig, OmegaConf

from zo_lightning.checkpoint.files import LocalFiles, write_whole
from zo_lightning.checkpoint.places import CHECKPOINT, CHECKPOINTS, JOURNAL, STORE, has_steps
from zo_lightning.config.resolvers import ABOUT, config_dir, sweep_job
from zo_lightning.errors import ConfigError

BEST = CHECKPOINT.with_name("best.ckpt")
FAILURE = "FAILED"
_BORN = ("id", "sweep", "job")  # stay when a run goes on
_TRACES = (Path("results.json"), Path("csv"))  # what only a run leaves behind, beside what it goes on from
_SNAPSHOT = "step-"  # how the name of a store's manifest begins
# What a run trains. The rest says how long, where and how it is shown, and may change when it goes on.
_IDENTITY = ("seed", "training", "objective", "data", "model", "task", "direction", "query", "estimator", "update")


def identity(config: DictConfig) -> dict[str, Any]:
    """What a run trains, by dotted config key."""
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, list(_IDENTITY)), resolve=True)
    return dict(_flat(json.loads(json.dumps(plain, default=lambda value: value.value)), ""))


def write_text(path: Path, text: str) -> None:
    """Replace a file by a whole one that outlives a loss of power, or leave it as it was."""
    write_whole(LocalFiles(), path, text.encode())


def resolve_checkpoint(config: DictConfig, root: Path) -> tuple[Path | None, Path | None]:
    """What ``ckpt_path`` means: a file forks, a run's folder goes on in place; ``last`` and ``best`` find them.

    Returns:
        The checkpoint file or store and the folder to go on in; None where there is none. A folder may hold a journal
        alone: the run then goes on from it without a checkpoint.

    Raises:
        ConfigError: if there is nothing there.
    """
    place = named_place(config, root)
    if place is None or place.is_file():
        return place, None
    return newest_checkpoint(place), place


def named_place(config: DictConfig, root: Path) -> Path | None:
    """The file or the run's folder that ``ckpt_path`` means; no checkpoint is opened.

    Raises:
        ConfigError: if there is nothing there.
    """
    if config.ckpt_path is None:
        return None
    if config.ckpt_path == "last":
        return _newest(root, identity(config))
    if config.ckpt_path == "best":
        return _newest(root, identity(config), BEST) / BEST
    path = Path(config.ckpt_path).expanduser()
    if path.is_file():
        if not is_zipfile(path):  # as torch writes them
            raise ConfigError(f"`ckpt_path={config.ckpt_path}` cannot be read as a checkpoint: name another")
        return path
    if is_begun(path):
        return path
    if (path / ABOUT).is_file():
        raise ConfigError(
            f"`ckpt_path={config.ckpt_path}`: the run was ended before it had kept a step; start it anew in a "
            "folder of its own"
        )
    what = (
        f"the folder holds no {CHECKPOINT}, no snapshot and no step in a journal"
        if path.is_dir()
        else "there is no such file or folder"
    )
    raise ConfigError(f"`ckpt_path={config.ckpt_path}`: {what}; name a .ckpt file, a run's folder, `last` or `best`")


def is_begun(folder: Path) -> bool:
    """Whether a folder holds steps to go on from.

    Empty folders of a journal and a store do not count: a fork that was killed there has to begin from its file again.
    """
    return (folder / CHECKPOINT).exists() or has_steps(folder / JOURNAL) or _newest_snapshot(folder) is not None


def newest_checkpoint(folder: Path) -> Path | None:
    """What to restore first, the store or the last checkpoint: the one with the further step, the store if it is equal.

    The journal, where there is one, has the steps behind it.
    """
    snapshot, last = _newest_snapshot(folder), folder / CHECKPOINT
    if snapshot is None:
        return last if last.is_file() else None
    return last if last.is_file() and _step_of(last) > snapshot else folder / STORE


def _newest_snapshot(folder: Path) -> int | None:
    manifests = (folder / STORE / "manifests").glob(f"{_SNAPSHOT}*.json")
    return max((int(path.stem.removeprefix(_SNAPSHOT)) for path in manifests), default=None)


def _step_of(checkpoint: Path) -> int:
    """Steps in a checkpoint file; -1 for one that is damaged."""
    import torch

    try:
        with ZipFile(checkpoint) as file:
            if file.testzip() is not None:
                return -1
        return int(torch.load(checkpoint, mmap=True, weights_only=True)["global_step"])
    except (OSError, EOFError, BadZipFile, RuntimeError, UnpicklingError, KeyError):
        return -1


@contextmanager
def claimed(
    folder: Path, config: DictConfig, *, resume: bool, overrides: Sequence[str] = (), patience: float = 0.0
) -> Iterator[None]:
    """Hold a run's folder for the length of the run, and note in it what the run is.

    Hydra would write ``.hydra`` before a run is known to be welcome; it is written here instead.

    Args:
        folder: the run's.
        config: the run's.
        resume: whether it goes on with the run that is there.
        overrides: the command line's.
        patience: seconds to wait for the folder, which a process that a dead run has started may hold for a moment.

    Raises:
        ConfigError: if another run holds the folder, if it holds a run already that this one does not resume, or if
            that run trains something else.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=patience)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(f"another run is writing into {folder}: set another `hydra.run.dir`") from None
    try:
        if resume:
            _check_same(folder, config)
        elif is_begun(folder):
            raise ConfigError(
                f"{folder} holds a run already: go on with `ckpt_path={folder}` or set another `hydra.run.dir`"
            )
        elif any((folder / trace).exists() for trace in _TRACES):
            raise ConfigError(f"{folder} holds a run that left nothing to go on from: set another `hydra.run.dir`")
        (folder / ".hydra").mkdir(exist_ok=True)
        write_text(folder / ".hydra" / "config.yaml", OmegaConf.to_yaml(config))
        write_text(folder / ".hydra" / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(list(overrides))))
        write_text(folder / ABOUT, json.dumps(_about(folder, config, resume=resume), indent=2) + "\n")
        (folder / FAILURE).unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def _about(folder: Path, config: DictConfig, *, resume: bool) -> dict[str, Any]:
    born = {"id": secrets.token_hex(4), **sweep_job()}
    if resume:
        born |= {key: value for key, value in json.loads((folder / ABOUT).read_text()).items() if key in _BORN}
    trains = identity(config)
    digest = hashlib.sha256(json.dumps(trains, sort_keys=True).encode()).hexdigest()[:16]
    return {**born, "config_dir": config_dir(), "config_digest": digest, "identity": trains}


def _check_same(folder: Path, config: DictConfig) -> None:
    saved, current = json.loads((folder / ABOUT).read_text())["identity"], identity(config)
    keys = sorted(key for key in saved.keys() | current.keys() if saved.get(key) != current.get(key))
    if keys:
        shown = ", ".join(f"`{key}`={saved.get(key)}, not {current.get(key)}" for key in keys)
        raise ConfigError(
            f"the run in {folder} has {shown}: leave these as they were, or fork it with "
            f"`ckpt_path={folder / CHECKPOINT}` into a folder of its own"
        )


def _newest(root: Path, wanted: dict[str, Any], checkpoint: Path | None = None) -> Path:
    """The newest run that trains what is wanted and has this file, or anything to go on from."""
    found = [
        about.parent
        for about in (root / "outputs").glob(f"*/*/{ABOUT}")
        if (is_begun(about.parent) if checkpoint is None else (about.parent / checkpoint).is_file())
        and _trained(about) == wanted
    ]
    if not found:
        what, hint = ("last", "a checkpoint or a journal"), ""
        if checkpoint is not None:
            what, hint = (checkpoint.stem, str(checkpoint)), "; `callbacks=[default,best_checkpoint]` makes it"
        raise ConfigError(
            f"`ckpt_path={what[0]}`: no run with this configuration has {what[1]} under {root / 'outputs'}{hint}"
        )
    return max(found, key=_last_changed)


def _trained(about: Path) -> Any:
    try:
        return json.loads(about.read_text())["identity"]
    except (OSError, ValueError, KeyError):  # another run's, which need not stop this one
        return None


def _last_changed(folder: Path) -> float:
    times = [0.0]
    for path in folder.rglob(f"{CHECKPOINTS}/**/*"):
        with suppress(FileNotFoundError):  # the run goes on, and has replaced it
            times.append(path.stat().st_mtime)
    return max(times)


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
