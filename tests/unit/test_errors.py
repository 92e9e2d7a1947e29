"""The edge of the process: what ends in one message and which exit code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from zo_lightning.cli.errors import FAILED, UNREAD, reported


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_is_one_sentence_with_the_file(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end, reported():
        raise OSError(number, os.strerror(number), "/runs/metrics.csv")
    told = capsys.readouterr().err
    assert end.value.code == FAILED
    assert told.startswith("error: ") and "(/runs/metrics.csv)" in told and told.count("\n") == 1


def test_other_errors_of_the_system_are_not_hidden() -> None:
    with pytest.raises(OSError, match="mine"), reported():
        raise OSError(errno.ECHILD, "mine")


def test_output_that_nobody_reads_ends_without_a_word() -> None:
    command = (
        "from zo_lightning.cli.errors import reported\nwith reported():\n    while True: print('line', flush=True)"
    )
    writer = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None and writer.stderr is not None
    writer.stdout.readline()
    writer.stdout.close()
    assert writer.stderr.read() == b""
    assert writer.wait() == UNREAD
