"""Processes for the other ranks of a run: how they start, and that none is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

_PATIENCE = 60  # seconds for the others to end after the first rank


@contextmanager
def started(size: int, folder: Path) -> Iterator[None]:
    """Start the other ranks; they end with the block, and with this process however it dies.

    Args:
        size: number of ranks, this one included.
        folder: where each of them leaves a log.
    """
    address, port = "127.0.0.1", _free_port()
    folder.mkdir(parents=True, exist_ok=True)
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
    with ExitStack() as stack:
        stack.enter_context(_environment({**common, "RANK": "0", "LOCAL_RANK": "0"}))
        processes = []
        for rank in range(1, size):
            log = stack.enter_context((folder / f"rank{rank}.log").open("ab"))
            processes.append(_start(rank, {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}, log))
            stack.callback(_end, processes[-1])
            threading.Thread(target=_watch, args=(processes[-1], rank, log.name, address, port), daemon=True).start()
        yield
        with suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(_PATIENCE)


def _start(rank: int, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches the first rank alone, which tells the others, and all of it ends together.
    return subprocess.Popen(
        [sys.executable, "-m", "zo_lightning.cli.ranks"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _watch(process: subprocess.Popen[bytes], rank: int, log: str, address: str, port: int) -> None:
    if process.wait():
        from zo_lightning.backends.ranks import report_failure

        report_failure(address, port, f"rank {rank} ended with exit code {process.returncode}; see {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()  # its lifeline
    process.wait(_PATIENCE)


def end_with_the_first_rank() -> None:
    """Standard input ends when the first rank does, however it dies; engines in child processes end too."""

    def wait() -> None:
        os.read(0, 1)  # unbuffered: a buffer's lock would be in the way when this process ends by itself
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
