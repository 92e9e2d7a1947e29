"""The files of one process: written from their headers on, synced as the mode says, left when a sync fails."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from zo_lightning.checkpoint.files import Files, OpenFile
from zo_lightning.checkpoint.journal.record import checksum_of, encode_end
from zo_lightning.checkpoint.journal.segment import Header, Identity, Place, name_of, place_of
from zo_lightning.errors import JournalError, StaleIncarnationError

log = logging.getLogger(__name__)

Fsync = Literal["none", "overlapped", "sync"]
_LOOK_EVERY = 64  # records between looks for a later process, where no sync brings one


class Writer:
    """Appends records to segments of one incarnation.

    Args:
        files: where.
        folder: of the journal; it exists.
        identity: of the run.
        incarnation: of this process.
        tip: the record that the first one continues.
        fsync: ``none`` leaves it to the operating system, ``sync`` returns when a record is on the disk, ``overlapped``
            syncs in a thread and waits for it before the next record.
        segment_bytes: size that a file may reach.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        identity: Identity,
        *,
        incarnation: int,
        tip: Place,
        fsync: Fsync,
        segment_bytes: int,
    ) -> None:
        self.tip, self.durable = tip, tip
        self._files, self._folder, self._identity, self._incarnation = files, folder, identity, incarnation
        self._fsync, self._segment_bytes = fsync, segment_bytes
        self._number, self._size, self._shift, self._written = 0, 0, 0, 0
        self._file: OpenFile | None = None
        self._unsynced: list[tuple[int, bytes]] = []
        self._pool = ThreadPoolExecutor(1, "journal")
        self._pending: Future[None] | None = None
        self._broken: JournalError | None = None  # why nothing more is written

    def write(self, step: int, raw: bytes, shift: int) -> None:
        """Append a record.

        Raises:
            JournalError: if it cannot be written; the journal then ends with the record before it.
            StaleIncarnationError: if another process has taken over.
        """
        self.settle()
        with self._refusing():
            full = self._size + len(raw) > self._segment_bytes
            if self._file is None or full or shift != self._shift:
                self._begin(step, shift)
            self._append(step, raw)
        if self._fsync == "none":
            self._look()
            return
        assert self._file is not None
        self._pending = self._pool.submit(self._sync, self._file)
        if self._fsync == "sync":
            self.settle()

    def settle(self) -> None:
        """Wait until what was written is on the disk; a file that cannot be synced is given up for a new one."""
        if self._broken:
            raise self._broken
        if self._pending is None:
            return
        error = self._pending.exception()
        if error is not None and not isinstance(error, OSError):
            raise error
        self._pending = None
        if error is not None:
            self._write_again(error)
        self.durable, self._unsynced = self.tip, []

    def close(self) -> None:
        """Mark the orderly end, unless something went wrong before. Idempotent."""
        try:
            if self._file is not None and not self._broken:
                self.settle()
                with self._refusing():
                    step, checksum = self.tip
                    self._file.write(encode_end(step + 1, incarnation=self._incarnation, chain=checksum))
                    if self._fsync != "none":
                        self._file.sync()
        finally:
            self._pool.shutdown()
            if self._file is not None:
                self._file.close()
            self._file = None

    def _begin(self, step: int, shift: int) -> None:
        if self._file is not None:
            self._file.close()
        follows, chain = self.tip
        header = Header(
            identity=self._identity,
            incarnation=self._incarnation,
            first=step,
            follows=follows,
            chain=chain,
            shift=shift,
        ).encode()
        path = self._folder / name_of(self._incarnation, self._number)
        self._file = self._files.create(path)
        self._file.write(header)
        if self._fsync != "none":
            self._file.sync()
            self._files.sync_folder(self._folder)
        self._number, self._size, self._shift = self._number + 1, len(header), shift

    def _append(self, step: int, raw: bytes) -> None:
        assert self._file is not None
        self._file.write(raw)
        self._size, self._written = self._size + len(raw), self._written + 1
        self.tip = (step, checksum_of(raw))
        if self._fsync != "none":
            self._unsynced.append((step, raw))

    def _write_again(self, error: OSError) -> None:
        # After a failed fsync a file's pages may be marked clean without being on the disk: another try would lie.
        log.warning("%s: a sync failed (%s); the steps since the last one go into a new file", self._folder, error)
        unsynced, self._unsynced, self.tip = self._unsynced, [], self.durable
        with self._refusing():
            self._begin(unsynced[0][0], self._shift)
            for step, raw in unsynced:
                self._append(step, raw)
            assert self._file is not None
            self._file.sync()

    def _sync(self, file: OpenFile) -> None:
        file.sync()
        self._check_not_stale()

    def _look(self) -> None:
        if self._written % _LOOK_EVERY == 0:
            self._check_not_stale()

    def _check_not_stale(self) -> None:
        newest = max(filter(None, map(place_of, self._files.names(self._folder))))[0]
        if newest > self._incarnation:
            self._broken = StaleIncarnationError(
                f"{self._folder}: process {newest} of this run has taken over from this one, number "
                f"{self._incarnation}: its steps count, and this process ends"
            )
            raise self._broken

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._broken = _refusal(self._folder, error)
            raise self._broken from error


def _refusal(folder: Path, error: OSError) -> JournalError:
    if isinstance(error, FileExistsError):
        return StaleIncarnationError(
            f"{folder}: another process of this run writes here ({error.filename}): its steps count, this one ends"
        )
    out = "free some" if error.errno == errno.ENOSPC else "mend or replace the disk"
    what = "no space left on the disk" if error.errno == errno.ENOSPC else str(error)
    return JournalError(
        f"{folder}: a step could not be written to the journal: {what}. All earlier ones are in it: {out}, and "
        "`ckpt_path=<run folder>` goes on after them"
    )
