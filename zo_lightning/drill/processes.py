"""Two ways to start a life: forked from a process that has imported everything, or as a command of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path


class Forked:
    """A life that costs no imports: Python's fork server has made them, and has no threads.

    Args:
        preload: the module that makes them.
        target: the life; a function of a module, with arguments that can be pickled.
        args: its arguments.
        log: gets its output.
    """

    def __init__(self, preload: str, target: Callable[..., None], args: Sequence[object], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preload])  # of the first; the server stays as long as this process
        self._process: BaseProcess = context.Process(target=_logged, args=(log, target, *args))
        self._process.start()

    def wait(self, seconds: float) -> int | None:
        """See ``lives.Process``."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> int:
        """See ``lives.Process``."""
        self._process.kill()
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


class Command:
    """A life as a user starts it, with everything that it starts.

    Args:
        words: the command line, behind the interpreter.
        log: gets its output.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *words], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, seconds: float) -> int | None:
        """See ``lives.Process``."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> int:
        """See ``lives.Process``."""
        os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()


def _logged(log: Path, target: Callable[..., None], *args: object) -> None:
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    target(*args)
