"""Failures of disks: each changes what happens to the bytes of one write, or to one sync."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass

from zo_lightning.checkpoint.files import OpenFile
from zo_lightning.failure.fault import Fault, kill


class StorageFault(Fault):
    """Strikes at a write or a sync of ``FaultyFiles``."""

    at_write, at_sync = True, False

    def write(self, file: OpenFile, data: bytes, before: int) -> None:
        """What happens instead of a write.

        Args:
            file: where.
            data: what should be written.
            before: bytes written so far through the faulty files.
        """
        file.write(data)

    def sync(self, file: OpenFile) -> None:
        """What happens instead of a sync."""
        file.sync()


class TornWrite(StorageFault):
    """A part of the data is written, and the process is killed."""

    def write(self, file: OpenFile, data: bytes, before: int) -> None:
        """Does not return."""
        file.write(data[: self.random.randrange(len(data))])
        kill()


class BitFlip(StorageFault):
    """One bit of the data is another one on the disk, and nobody says so."""

    def write(self, file: OpenFile, data: bytes, before: int) -> None:
        """Returns, as if all were well."""
        flipped, place = bytearray(data), self.random.randrange(8 * len(data))
        flipped[place // 8] ^= 1 << place % 8
        file.write(bytes(flipped))


@dataclass(kw_only=True)
class DiskFull(StorageFault):
    """A part of the data is written, and there is no space for the rest.

    Args:
        writes: in a row, that fail.
    """

    writes: int = 3

    @property
    def times(self) -> int:
        """As many writes."""
        return self.writes

    def write(self, file: OpenFile, data: bytes, before: int) -> None:
        """Raises ``OSError``."""
        file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SyncError(StorageFault):
    """One sync fails, after which nothing is known of what was written."""

    at_write, at_sync = False, True

    def sync(self, file: OpenFile) -> None:
        """Raises ``OSError``."""
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@dataclass(kw_only=True)
class SlowDisk(StorageFault):
    """Every write and sync takes long, from its moment on.

    Args:
        bytes_per_second: of writes.
        latency: seconds that a sync takes longer.
    """

    bytes_per_second: float = 1e6
    latency: float = 0.02

    at_sync = True
    needs_trigger, lasts = False, True  # the whole run unless told otherwise, and a restart does not mend it

    def write(self, file: OpenFile, data: bytes, before: int) -> None:
        """Returns late."""
        time.sleep(len(data) / self.bytes_per_second)
        file.write(data)

    def sync(self, file: OpenFile) -> None:
        """Returns late."""
        time.sleep(self.latency)
        file.sync()
