"""The edge of the process: errors that a user can act on become one message and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from zo_lightning.errors import ZOError

INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended
TERMINATED = 143  # and one that SIGTERM ended
FAILED = 2


@contextmanager
def reported(*, reraise: bool = False) -> Iterator[None]:
    """Turn a user's errors into one message without a traceback, and Ctrl-C into exit code 130.

    Args:
        reraise: pass the error on after the message. In a sweep Hydra then goes on with the other jobs.
    """
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except (ZOError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSPC:
            raise
        print(f"error: {error if isinstance(error, ZOError) else _no_space(error)}", file=sys.stderr)
        if reraise:
            raise
        raise SystemExit(FAILED) from None


def _no_space(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return (
        f"no space left on the disk{where}: free some or set another `hydra.run.dir`; checkpoints and results "
        "already written are whole, and `ckpt_path=<run folder>` goes on from the last checkpoint"
    )
