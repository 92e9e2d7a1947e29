"""The edge of the process: errors that a user can act on become one message and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from zo_lightning.errors import EngineDiedError, RankError, ZOError

INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended
TERMINATED = 143  # and one that SIGTERM ended
UNREAD = 141  # and one that SIGPIPE ended
PREEMPTED = 138  # and one that SIGUSR1 ended
FAILED = 2
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command may succeed
_REFUSED = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EFBIG: "a file may not grow any more",
    errno.EROFS: "the disk can only be read",
    errno.EACCES: "this may not be written",
    errno.EPERM: "this may not be written",
}


@contextmanager
def reported() -> Iterator[None]:
    """Turn a user's errors into one message without a traceback, and Ctrl-C into exit code 130.

    Around a whole command it also says which keys there are, where Hydra has ended it for one that is not there.
    """
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except SystemExit as end:
        missing = getattr(end.__context__, "__cause__", None)
        if isinstance(missing, ConfigAttributeError | ConfigKeyError):
            print(_known_keys(missing), file=sys.stderr)
        raise
    except MissingMandatoryValue as error:
        print(f"error: `{error.full_key}` has no value and needs one: set it", file=sys.stderr)
        raise SystemExit(FAILED) from None
    except BrokenPipeError:  # `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(UNREAD) from None
    except (ZOError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _REFUSED:
            raise
        print(f"error: {error if isinstance(error, ZOError) else _refused(error)}", file=sys.stderr)
        raise SystemExit(TRY_AGAIN if isinstance(error, EngineDiedError | RankError) else FAILED) from None


def _known_keys(error: OmegaConfBaseException) -> str:
    parent = str(error.full_key).rpartition(".")[0]
    return f"{f'`{parent}`' if parent else 'the configuration'} has the keys {', '.join(sorted(error.parent_node))}"


def _refused(error: OSError) -> str:
    assert error.errno is not None
    where = f" ({error.filename})" if error.filename else ""
    return (
        f"{_REFUSED[error.errno]}{where}: mend that or set another folder; checkpoints and results already written are "
        "whole, and `ckpt_path=<run folder>` goes on from the last checkpoint"
    )
