"""Failures of the process and of what it computes."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import signal
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zo_lightning.checkpoint.files import OpenFile
from zo_lightning.core.roles import Backend
from zo_lightning.core.types import EvalRequest, Observation
from zo_lightning.errors import ConfigError, EngineDiedError
from zo_lightning.failure.fault import Fault, kill
from zo_lightning.failure.storage import StorageFault


class ProcessFault(Fault):
    """Strikes at the start of a step; one that needs no step strikes from a timer, at its second."""

    from_timer = False
    needs_engine = False

    def strike(self, backend: Backend | None) -> None:
        """Do the harm.

        Args:
            backend: the run's, open; none where a run has none, which ``needs_engine`` excludes.
        """
        raise NotImplementedError


class Kill(ProcessFault, StorageFault):
    """SIGKILL to this process; with ``byte``, in the middle of the write that reaches it."""

    from_timer = True

    def strike(self, backend: Backend | None) -> None:
        """Does not return."""
        kill()

    def write(self, file: OpenFile, data: bytes, before: int) -> None:
        """Write up to the byte. Does not return."""
        file.write(data[: self.trigger.byte - before])
        kill()


@dataclass(kw_only=True)
class Poisson(ProcessFault):
    """SIGKILL at random moments: a restarted run is killed again, but never twice at one step.

    Args:
        per_step: probability at each step.
        per_second: expected number in a second, instead.

    Raises:
        ConfigError: unless one of the two is set.
    """

    per_step: float | None = None
    per_second: float | None = None

    from_timer = True
    needs_trigger = False  # it strikes at a rate

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.per_step is None) == (self.per_second is None):
            raise ConfigError("`failure.poisson` has one rate: set `per_step` or `per_second`, and the other to null")

    def strikes_at(self, step: int) -> bool:
        """Whether a step is one that it strikes at, the same in every process."""
        return self.per_step is not None and random.Random(f"{self.seed} {step}").random() < self.per_step

    def gap(self, number: int) -> float | None:
        """Seconds from the start of training to the strike that has ``number`` before it in the run."""
        if self.per_second is None:
            return None
        return random.Random(f"{self.seed} gap {number}").expovariate(self.per_second)

    def strike(self, backend: Backend | None) -> None:
        """Does not return."""
        kill()


class Sigterm(ProcessFault):
    """SIGTERM to this process, as a scheduler sends it."""

    from_timer = True

    def strike(self, backend: Backend | None) -> None:
        """Returns; the step ends."""
        os.kill(os.getpid(), signal.SIGTERM)


class Hang(ProcessFault):
    """No progress any more, while the process lives on."""

    def strike(self, backend: Backend | None) -> None:
        """Does not return."""
        while True:  # a signal's handler runs and changes nothing
            threading.Event().wait(3600)


class EngineDeath(ProcessFault):
    """The engine dies: its process is killed; one without a process of its own answers with an error."""

    needs_engine = True

    def strike(self, backend: Backend | None) -> None:
        """Raises ``EngineDiedError`` where the engine is in this process."""
        engines = multiprocessing.active_children()
        for engine in engines:
            engine.kill()
        if not engines:
            raise EngineDiedError("`failure=engine_death` ended the engine")


@dataclass(kw_only=True)
class NanLoss(ProcessFault):
    """The losses of some steps in a row are not a number.

    Args:
        count: steps.
    """

    count: int = 1

    needs_engine = True

    def strike(self, backend: Backend | None) -> None:
        """Returns; the probes of the next steps are answered so."""
        assert backend is not None
        evaluate, end = backend.evaluate, backend.version + self.count

        def answers(requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
            seen = evaluate(requests)
            if backend.version >= end:
                return seen
            pairs = zip(requests, seen, strict=True)
            return tuple(_not_a_number(answer) if request.point.terms else answer for request, answer in pairs)

        backend.evaluate = answers  # type: ignore[method-assign]


@dataclass(kw_only=True)
class CrossDeviceTmp(ProcessFault):
    """Temporary files are on another file system than the run's folder, so that moving them is a copy.

    Args:
        folder: a folder on it.
    """

    folder: str = "/dev/shm"

    needs_trigger, lasts = False, True  # in every process of the run, from its start

    def check(self, run: Path) -> None:
        """Raise ``ConfigError`` where the folder is not on another file system."""
        there = Path(self.folder)
        if not there.is_dir() or there.stat().st_dev == _existing(run).stat().st_dev:
            raise ConfigError(
                f"`failure.cross_device_tmp.folder`={self.folder} is not on another file system than {run}: name one"
            )

    def strike(self, backend: Backend | None) -> None:
        """Returns."""
        os.environ["TMPDIR"] = self.folder
        tempfile.tempdir = None  # asked anew


def _not_a_number(answer: Observation) -> Observation:
    return replace(answer, losses=(math.nan,) * len(answer.losses))


def _existing(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
