"""The edge of the process: errors that a user can act on become one message and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from zo_lightning.errors import ZOError

INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended
FAILED = 2


@contextmanager
def reported() -> Iterator[None]:
    """Turn a user's errors into one message without a traceback, and Ctrl-C into exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except ZOError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(FAILED) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"error: no space left on the disk{where}: free some or set another `hydra.run.dir`; files already "
            "written are whole, and `ckpt_path=<run folder>` goes on from the last checkpoint",
            file=sys.stderr,
        )
        raise SystemExit(FAILED) from None
