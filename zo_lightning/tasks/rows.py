"""Where a task's rows come from: JSON Lines files, or the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from zo_lightning.deadline import answer_within
from zo_lightning.errors import DataError

HUB_TIMEOUT = 15.0  # seconds to a first answer


class Row(NamedTuple):
    """One record, and where it stands (for errors)."""

    origin: str
    fields: dict[str, Any]

    @property
    def present(self) -> dict[str, Any]:
        """Fields that are not null.

        Examples:
            >>> Row("line 1", {"a": 1, "b": None}).present
            {'a': 1}
        """
        return {name: value for name, value in self.fields.items() if value is not None}

    @property
    def columns(self) -> str:
        """Says which fields there are, for errors."""
        return f"this row has {', '.join(sorted(self.present)) or 'no column'}"

    def field(self, name: str, *, key: str) -> Any:
        """The value of one field.

        Args:
            name: which.
            key: config key that names it, for errors.

        Raises:
            DataError: it is missing or null.
        """
        if self.fields.get(name) is None:
            raise DataError(f"{self.origin}: no column `{key}`={name}; {self.columns}")
        return self.fields[name]


def find_file(folder: Path, searched: tuple[tuple[str, ...], ...], *, task: str, key: str) -> Path:
    """The one file of a folder that matches.

    Args:
        folder: where to look.
        searched: groups of file name patterns; the first group that matches anything decides.
        task: name of the task, for errors.
        key: config key that names the file outright, for errors.

    Raises:
        DataError: there is no such folder, or none or several match.
    """
    if not folder.is_dir():
        raise DataError(f"task {task}: `task.data_dir`={folder} is not a folder")
    for patterns in searched:
        found = sorted(path for pattern in patterns for path in folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise DataError(f"task {task}: several files in {folder} match: {names}. Choose one with `{key}`")
        if found:
            return found[0]
    wanted = " or ".join(pattern for patterns in searched for pattern in patterns)
    raise DataError(f"task {task}: no {wanted} in `task.data_dir`={folder}: put one there or set `{key}`")


def read_jsonl(path: Path, *, key: str) -> list[Row]:
    """Rows of a JSON Lines file in UTF-8; empty lines are left out.

    Args:
        path: the file.
        key: config key that named it.

    Raises:
        DataError: no such file, no rows, or a line that is not a JSON object.
    """
    if not path.is_file():
        raise DataError(f"`{key}`={path} is not a file")
    rows = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                rows.append(Row(f"{path} line {number}", _parse(line, f"{path} line {number}", key)))
    if not rows:
        raise DataError(f"`{key}`: {path} has no rows")
    return rows


def _parse(line: bytes, origin: str, key: str) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:  # both broken JSON and broken UTF-8
        raise DataError(f"{origin} is not JSON in UTF-8 ({error}): mend it or change `{key}`") from error
    if not isinstance(fields, dict):
        raise DataError(f"{origin} is not a JSON object: mend it or change `{key}`")
    return fields


def read_hub(path: str, config: str | None, validation_split: str, *, task: str) -> tuple[list[Row], list[Row]]:
    """Training and test rows of a data set on the hub.

    Raises:
        DataError: the package `datasets`, the hub or the data set cannot be had.
    """
    try:
        import datasets
        import huggingface_hub

        if not datasets.config.HF_HUB_OFFLINE:  # offline, the local cache answers at once or never
            # `load_dataset` retries an unreachable hub for minutes: ask it one question first
            answer_within(HUB_TIMEOUT, lambda: huggingface_hub.HfApi().dataset_info(path, timeout=HUB_TIMEOUT))
        splits = datasets.load_dataset(path, config)
        return _hub_rows(splits["train"], path, "train"), _hub_rows(splits[validation_split], path, validation_split)
    except Exception as error:  # the packages raise some twenty types for a missing network, data set or split
        reason = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0][:200]
        raise DataError(
            f"task {task}: {path} could not be had from the hub ({reason}). Point `task.data_dir=` at a folder with "
            f"{task}_train*.jsonl and {task}_validation*.jsonl, or set HF_HUB_OFFLINE=1 to use an earlier download"
        ) from error


def _hub_rows(split: Any, path: str, name: str) -> list[Row]:
    return [Row(f"{path} {name} row {number}", fields) for number, fields in enumerate(split.to_list())]
