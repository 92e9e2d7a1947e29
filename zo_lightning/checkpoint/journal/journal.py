"""The journal of a run: every step is in it before it is applied."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock, Timeout

from zo_lightning.checkpoint.files import Files, LocalFiles, make_folders
from zo_lightning.checkpoint.journal.record import Entry, decode, encode
from zo_lightning.checkpoint.journal.recovery import START, check_identity, read_journal
from zo_lightning.checkpoint.journal.repair import catch_up
from zo_lightning.checkpoint.journal.segment import Identity, place_of
from zo_lightning.checkpoint.journal.writer import Fsync, Writer
from zo_lightning.errors import JournalError

log = logging.getLogger(__name__)

SEGMENT_BYTES = 1 << 24
_PATIENCE = 1.0  # seconds for the lock: a process forked from one that was killed may hold it for a moment


class Journal:
    """One rank's journal, open for writing.

    Opening it recovers what is there, copies what only a peer has, and takes the folder's lock. Files that hold steps
    are never written again: each process begins its own, under the next incarnation, with its first step.

    Args:
        folder: of this rank; made if it is not there.
        identity: of the run.
        fsync: ``none`` survives the death of the process; ``overlapped`` loses at most the last acknowledged step to a
            loss of power, ``sync`` none.
        files: where.
        peers: folders of the other ranks.
        snapshot: number of steps in the verified snapshot that training begins from. Damage to earlier steps loses
            nothing then, and the next step may be the one after them although the journal ends before.
        segment_bytes: size at which a new file is begun.

    Attributes:
        seconds: that ``append`` has taken.

    Raises:
        JournalError: if steps are lost, the journal is another run's, or another process has it open.
    """

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        *,
        fsync: Fsync = "overlapped",
        files: Files | None = None,
        peers: Sequence[Path] = (),
        snapshot: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        files = files or LocalFiles()
        self.folder, self._snapshot, self.seconds = folder, snapshot, 0.0
        make_folders(files, folder)
        with ExitStack() as undo:
            self._lock = _locked(folder)
            undo.callback(self._lock.release)
            recovered = read_journal(folder, files=files, peers=peers, snapshot=snapshot)
            if recovered.identity is not None:
                check_identity(recovered.identity, identity, folder)
            copied = catch_up(files, folder, recovered, identity, durable=fsync != "none")
            self.problems = (*recovered.problems, *copied)
            for problem in self.problems:
                log.warning("%s", problem)
            self.incarnation = 1 + _highest(files, (folder, *peers))
            self._entries = recovered.entries
            last = recovered.chain[-1] if recovered.chain else None
            self._writer = Writer(
                files,
                folder,
                identity,
                incarnation=self.incarnation,
                tip=(last.step, last.checksum) if last else START,
                fsync=fsync,
                segment_bytes=segment_bytes,
            )
            undo.pop_all()

    @property
    def entries(self) -> Mapping[int, Entry]:
        """All steps, as recovered and appended."""
        return MappingProxyType(self._entries)

    @property
    def last_step(self) -> int:
        """The newest step, -1 before the first."""
        return self._writer.tip[0]

    @property
    def durable_step(self) -> int:
        """The newest step that a loss of power leaves, as far as is known; with ``fsync=none``, of the last opening."""
        return self._writer.durable[0]

    @property
    def chain(self) -> int:
        """Checksum of the last record, which holds those of all before it: equal on all ranks that agree."""
        return self._writer.tip[1]

    def append(self, entry: Entry) -> Entry:
        """Write a step, before it is applied.

        Returns:
            The step as the journal has it, which is the one to apply.

        Raises:
            JournalError: if the step is not the next one, or cannot be written.
            StaleIncarnationError: if another process has taken over the run.
        """
        started = time.perf_counter()
        step, shift = entry.record.step, entry.record.version - entry.record.step
        self._check_next(step)
        raw = encode(entry, incarnation=self.incarnation, chain=self.chain)
        self._writer.write(step, raw, shift)
        written = decode(raw, 0, shift=shift)
        assert written is not None and written.entry is not None
        self._entries[step] = written.entry
        self.seconds += time.perf_counter() - started
        return written.entry

    def wait_durable(self) -> None:
        """Return when every appended step would survive a loss of power; with ``fsync=none`` at once."""
        self._writer.settle()

    def close(self) -> None:
        """Mark the orderly end and let the folder go. Idempotent."""
        try:
            self._writer.close()
        finally:
            self._lock.release()

    def _check_next(self, step: int) -> None:
        last = self.last_step
        if step == last + 1 or last == START[0] or step == self._snapshot > last:
            return
        raise JournalError(
            f"{self.folder}: step {step} does not continue the journal, whose last is {last}: begin from a snapshot of "
            f"at most {last + 1} steps, or fork with `ckpt_path=FILE`"
        )


def _locked(folder: Path) -> FileLock:
    lock = FileLock(folder / ".lock", timeout=_PATIENCE, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise JournalError(f"{folder} is open in another process: wait for its end, or end it") from None
    return lock


def _highest(files: Files, folders: Sequence[Path]) -> int:
    places = (place_of(name) for folder in folders for name in files.names(folder))
    return max((place[0] for place in places if place is not None), default=0)
