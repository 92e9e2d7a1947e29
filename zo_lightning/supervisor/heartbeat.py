"""The run's end of the line to its supervisor: signs of life one way, the word to take over the other way."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from contextlib import suppress
from typing import NamedTuple

LINE = "ZO_LIGHTNING_HEARTBEAT"  # the socket's descriptor
ROLE = "ZO_LIGHTNING_ROLE"  # why the process was started: FIRST, AGAIN or SPARE
FIRST, AGAIN, SPARE = "first", "again", "spare"
GO = b"go\n"

# Phases of a run.
STARTING, STANDING_BY, RESTORING, TRAINING, VALIDATING, TESTING, ENDING = (
    "starting",
    "standing by",
    "restoring",
    "training",
    "validating",
    "testing",
    "ending",
)


class Beat(NamedTuple):
    """A sign of life: a phase begins, or a piece of its work is done."""

    phase: str
    step: int  # steps done
    done: bool  # a piece of work, such as a step

    def encode(self) -> bytes:
        """One line.

        Examples:
            >>> Beat.decode(Beat("training", 7, True).encode())
            Beat(phase='training', step=7, done=True)
        """
        return json.dumps(self).encode() + b"\n"

    @staticmethod
    def decode(line: bytes) -> Beat:
        """What ``encode`` made."""
        return Beat(*json.loads(line))


class Heartbeat:
    """Beats while a supervisor listens, and does nothing without one.

    Args:
        line: the socket to the supervisor.
        role: why this process was started.
    """

    def __init__(self, line: socket.socket | None = None, role: str = FIRST) -> None:
        self._line, self.role = line, role

    @property
    def is_supervised(self) -> bool:
        """Whether there is a supervisor."""
        return self._line is not None

    @property
    def is_spare(self) -> bool:
        """Whether this process is to wait until another one dies."""
        return self.role == SPARE

    @property
    def goes_on(self) -> bool:
        """Whether the run's folder is one that an earlier process of this supervisor has begun."""
        return self.role != FIRST

    def beat(self, phase: str, step: int, *, done: bool = False) -> None:
        """Say where the run is. Never waits: a beat that the line has no room for is left out."""
        if self._line is None:
            return
        with suppress(OSError):  # the supervisor is slow, or gone, which another thread sees to
            self._line.send(Beat(phase, step, done).encode(), socket.MSG_DONTWAIT)

    def stand_by(self) -> None:
        """Say that everything is ready and wait for the word, without using the processor.

        Raises:
            SystemExit: if the supervisor ends before it comes.
        """
        assert self._line is not None
        self.beat(STANDING_BY, 0)
        if self._line.recv(len(GO)) != GO:
            raise SystemExit(0)
        self.end_with_the_supervisor()

    def end_with_the_supervisor(self) -> None:
        """From here on, end this run as SIGTERM does if the supervisor is gone."""
        if self._line is None:
            return

        def wait(line: socket.socket) -> None:
            if not line.recv(1):
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, args=(self._line,), daemon=True).start()


_heartbeat = Heartbeat()


def heartbeat() -> Heartbeat:
    """This process's."""
    return _heartbeat


def connect() -> Heartbeat:
    """Take the line that a supervisor has left in the environment; processes started from here do not see it."""
    global _heartbeat
    descriptor = os.environ.pop(LINE, None)
    if descriptor is not None:
        line = socket.socket(fileno=int(descriptor))
        line.set_inheritable(False)
        _heartbeat = Heartbeat(line, os.environ.pop(ROLE, FIRST))
        if _heartbeat.role != SPARE:
            _heartbeat.end_with_the_supervisor()
    return _heartbeat
