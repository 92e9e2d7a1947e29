"""What the tests of the store share: trees, their comparison bit by bit, and files that fail."""

from __future__ import annotations

import errno
import math
import os
import signal
import struct
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch

from zo_lightning.checkpoint.files import LocalFiles


def small_tree(step: int) -> dict:
    """A checkpoint as Lightning has it, with two tensors in a block and two that stand in the manifest."""
    return {
        "epoch": 0,
        "global_step": step,
        "lr": 1e-3 / (step + 1),
        "best": math.inf,
        "callbacks": {},
        "state_dict": OrderedDict(w=torch.arange(400.0) + step, frozen=torch.arange(300.0), scalar=torch.tensor(step)),
        "optimizer_states": [{"state": {0: {"exp_avg": torch.full((3,), step, dtype=torch.bfloat16)}}}],
    }


def same(one: object, two: object) -> bool:
    """Equal in type, order and every bit."""
    if type(one) is not type(two):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and _bits(one) == _bits(two)
    if isinstance(one, dict):
        return same(list(one), list(two)) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", two)
    return one == two


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.resolve_conj().contiguous().flatten().view(torch.uint8).numpy().tobytes()


class FailingFiles(LocalFiles):
    """Local files where ``fault(operation, path)`` is called before every change, and half a write after it fails."""

    def __init__(self, fault: Callable[[str, Path], None]) -> None:
        self.fault = fault

    def create(self, path):
        self.fault("create", path)
        return _FailingFile(super().create(path), path, self.fault)

    def replace(self, source, target):
        self.fault("replace", target)
        super().replace(source, target)

    def remove(self, path):
        self.fault("remove", path)
        super().remove(path)

    def make_folder(self, path):
        self.fault("make_folder", path)
        super().make_folder(path)

    def sync_folder(self, path):
        self.fault("sync_folder", path)
        super().sync_folder(path)


class _FailingFile:
    def __init__(self, file, path, fault):
        self._file, self._path, self._fault = file, path, fault

    def write(self, data):
        self._file.write(data[: len(data) // 2])
        self._fault("write", self._path)
        self._file.write(data[len(data) // 2 :])

    def sync(self):
        self._fault("sync", self._path)
        self._file.sync()

    def close(self):
        self._file.close()


def full_disk(operation: str, path: Path) -> None:
    """A disk that takes names and no content."""
    if operation in ("write", "sync"):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


class ChangedFiles(LocalFiles):
    """Local files of which one is read with another content."""

    def __init__(self) -> None:
        self.changed: dict[Path, bytes] = {}

    def read(self, path: Path) -> bytes:
        return self.changed[path] if path in self.changed else super().read(path)


class Gate:
    """A fault that stands still until it is opened, as a slow disk does."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, operation: str, path: Path) -> None:
        self.reached.set()
        assert self.open.wait(60)


def kill_at(number: int) -> Callable[[str, Path], None]:
    """SIGKILL this process at its operation ``number``."""
    left = [number]

    def fault(operation: str, path: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


def forked(work: Callable[[], None]) -> int:
    """How ``work`` ended in a process of its own: an exit code, or a signal as a negative number."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
