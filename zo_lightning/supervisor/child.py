"""A process of the supervised run: started in a group of its own, listened to, and ended with all that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from zo_lightning.supervisor.heartbeat import GO, LINE, ROLE, STARTING, Beat

_LAST_WORDS = (
    1.0  # seconds for what a dead process has said; there is nothing to wait for unless a child of it lives on
)


class Heard(NamedTuple):
    """A child has beaten, or ended."""

    child: Child
    at: float  # time.monotonic()
    beat: Beat | None  # None: it has ended


class Child:
    """Starts at once.

    Args:
        command: the process.
        role: why it is started.
        tell: called from other threads with every beat, and at the end; the end is known within milliseconds.
    """

    def __init__(self, command: Sequence[str], role: str, tell: Callable[[Heard], None]) -> None:
        self.role, self._tell = role, tell
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, LINE: str(theirs.fileno()), ROLE: role},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.last_heard = time.monotonic()
        self.phase, self.step = STARTING, 0
        self.warm: set[str] = set()  # phases in which it has done a piece of work; the first one takes longer
        self.killed_in: str | None = None  # the phase in which it was killed for its silence
        listener = threading.Thread(target=self._listen, daemon=True)
        listener.start()
        threading.Thread(target=self._wait, args=(listener,), daemon=True).start()

    @property
    def exit_code(self) -> int:
        """As a shell reports it, once it has ended."""
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def take_over(self) -> None:
        """Let a spare go on with the run. One that has died is heard of as any other."""
        with suppress(OSError):
            self._line.sendall(GO)
        self.phase, self.last_heard = STARTING, time.monotonic()

    def send(self, number: int) -> None:
        """A signal to the process, which sees to its own children."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it with everything that it started. Idempotent."""
        with suppress(ProcessLookupError, PermissionError):  # all gone; on macOS, zombies
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and wait until it is gone. Idempotent."""
        self.kill()
        self._process.wait()

    def _listen(self) -> None:
        with self._line.makefile("rb") as lines:
            for line in lines:
                self._tell(Heard(self, time.monotonic(), Beat.decode(line)))

    def _wait(self, listener: threading.Thread) -> None:
        self._process.wait()
        at = time.monotonic()
        if self._process.returncode:
            self.kill()  # what it has left behind, such as an engine, would hold memory and locks
        listener.join(_LAST_WORDS)
        self._tell(Heard(self, at, None))
