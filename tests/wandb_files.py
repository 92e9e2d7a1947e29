"""Reads what W&B wrote offline: a log of protobuf records in LevelDB's framing, after a header of seven bytes."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4


@dataclass
class OfflineRun:
    """One offline folder: the run's own record, its configuration, rows of history, summary and exit code."""

    folder: Path
    run: Any
    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    exit_code: int | None

    def steps(self, metric: str) -> list[int]:
        """Lightning's steps at which a metric was logged."""
        return [row["trainer/global_step"] for row in self.history if metric in row]


def offline_runs(folder: Path) -> list[OfflineRun]:
    """The ended offline runs under a run's folder, oldest first."""
    found = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    return [_ended(path) for path in found]


def _ended(path: Path) -> OfflineRun:
    """W&B's own process writes the last records, shortly after ``finish`` has returned."""
    deadline = time.monotonic() + 30
    while (found := _read(path)).exit_code is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _read(path: Path) -> OfflineRun:
    from wandb.proto.wandb_internal_pb2 import Record

    found = OfflineRun(path.parent, None, {}, [], {}, None)
    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run = record.run
            found.config |= _items(record.run.config.update)
        elif kind == "config":
            found.config |= _items(record.config.update)
        elif kind == "history":
            found.history.append(_items(record.history.item))
        elif kind == "summary":
            found.summary |= _items(record.summary.update)
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(data: bytes) -> Iterator[bytes]:
    assert data.startswith(b":W&B")
    at, parts = _HEADER, b""
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:  # too little for another header: padding
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        part = data[at + _HEADER : at + _HEADER + length]
        parts = part if kind in (_FULL, _FIRST) else parts + part
        at += _HEADER + length
        if kind in (_FULL, _LAST):
            yield parts
