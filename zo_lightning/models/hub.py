"""Models from the Hugging Face hub, with an answer in seconds when it cannot be reached."""

from __future__ import annotations

import logging
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from zo_lightning.deadline import answer_within
from zo_lightning.errors import DataError
from zo_lightning.models.folder import missing_parts

_DEADLINE = 15.0  # seconds for the first answer
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")  # config, tokenizer, chat template
_OTHER_FORMATS = ("original/*", "onnx/*")

_log = logging.getLogger(__name__)


def fetch(repo: str, revision: str | None) -> Path:
    """The folder of a model repository, downloaded where needed; without the hub, a complete earlier download.

    Args:
        repo: ``organisation/name``.
        revision: branch, tag or commit; None is the main branch.

    Raises:
        DataError: if the model can be had neither from the hub nor from its cache on this machine.
    """
    try:
        files = answer_within(_DEADLINE, lambda: _list_files(repo, revision))
        weights = "*.safetensors" if any(file.endswith(".safetensors") for file in files) else "*.bin"
        return _snapshot(repo, revision, weights)
    except Exception as error:  # the edge of the process: sockets, TLS, HTTP and storage raise many kinds
        return _earlier_download(repo, revision, error)


def fetch_config(repo: str, revision: str | None) -> Path:
    """A folder with the ``config.json`` of a model repository, without its weights.

    Raises:
        DataError: if it can be had neither from the hub nor from its cache on this machine.
    """
    try:
        return answer_within(_DEADLINE, lambda: Path(hf_hub_download(repo, "config.json", revision=revision)).parent)
    except Exception as error:  # the edge of the process, as above
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise DataError(
            f"could not get the config of `{repo}` from the Hugging Face hub ({reason}): point `model.path=/folder` at "
            "a folder with its config.json"
        ) from error


def _list_files(repo: str, revision: str | None) -> list[str]:
    info = HfApi().model_info(repo, revision=revision, timeout=_DEADLINE)
    return [file.rfilename for file in info.siblings or ()]


def _snapshot(repo: str, revision: str | None, *weights: str, local_files_only: bool = False) -> Path:
    folder = snapshot_download(
        repo,
        revision=revision,
        allow_patterns=[*_SMALL_FILES, *weights],
        ignore_patterns=list(_OTHER_FORMATS),
        local_files_only=local_files_only,
    )
    return Path(folder)


def _earlier_download(repo: str, revision: str | None, error: Exception) -> Path:
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    try:
        folder = _snapshot(repo, revision, local_files_only=True)
    except LocalEntryNotFoundError:
        lacks = "no earlier download"
    else:
        missing = missing_parts(folder)
        if not missing:
            _log.warning("using the earlier download %s, not the Hugging Face hub (%s)", folder, reason)
            return folder
        lacks = f"only an incomplete download, without {', '.join(missing)}"
    licence = (
        f" If it is gated, accept its licence at https://huggingface.co/{repo} and run `hf auth login`."
        if isinstance(error, RepositoryNotFoundError)
        else ""
    )
    raise DataError(
        f"could not get the model `{repo}` from the Hugging Face hub ({reason}), and this "
        f"machine has {lacks}.{licence} Point `model.path=/folder` at a local copy."
    ) from error
