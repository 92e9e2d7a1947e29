"""What a rank's folder lacks is copied into it: records that another rank has, or that its disk may not keep."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from zo_lightning.checkpoint.files import Files, write_whole
from zo_lightning.checkpoint.journal.record import encode_end
from zo_lightning.checkpoint.journal.recovery import START, Recovered
from zo_lightning.checkpoint.journal.segment import Header, Identity, Place, Segment, Stored, name_of, place_of
from zo_lightning.errors import JournalError

log = logging.getLogger(__name__)


def catch_up(files: Files, folder: Path, recovered: Recovered, identity: Identity, *, durable: bool) -> tuple[str, ...]:
    """Leave every record of the chain in the folder, as whole new files; nothing is overwritten.

    Args:
        files: where.
        folder: of this rank.
        recovered: from it and its peers.
        identity: of the run.
        durable: sync what is there, since new records must not outlive the ones they continue.

    Returns:
        Sentences about what was copied.

    Raises:
        JournalError: if it cannot be written.
    """
    kept = {
        (stored.step, stored.checksum)
        for segment in recovered.segments
        if not durable or _synced(files, segment)
        for stored in segment.records
    }
    chain = recovered.chain
    start = next((i for i, stored in enumerate(chain) if (stored.step, stored.checksum) not in kept), len(chain))
    try:
        if durable:
            files.sync_folder(folder)
        return tuple(_copied(files, folder, identity, run, before) for run, before in _runs(chain, start))
    except OSError as error:
        raise JournalError(
            f"{folder}: steps {chain[start].step} to {chain[-1].step} could not be copied: {error}"
        ) from error


def _synced(files: Files, segment: Segment) -> bool:
    """Whether a file's content is on the disk; one that cannot be synced is copied, never tried again."""
    try:
        file = files.append(segment.path)
        try:
            file.sync()
        finally:
            file.close()
    except OSError as error:
        log.warning("%s: a sync failed (%s); its steps go into a new file", segment.path, error)
        return False
    return True


def _runs(chain: Sequence[Stored], start: int) -> Iterator[tuple[Sequence[Stored], Place]]:
    """Pieces that one header can describe, each with the record it continues."""
    for i in range(start, len(chain)):
        following = chain[i + 1] if i + 1 < len(chain) else None
        if following is None or following.step != chain[i].step + 1 or following.shift != chain[i].shift:
            yield chain[start : i + 1], (chain[start - 1].step, chain[start - 1].checksum) if start else START
            start = i + 1


def _copied(files: Files, folder: Path, identity: Identity, run: Sequence[Stored], before: Place) -> str:
    # Under the incarnation that wrote them: a copy must not make this process a later one than its peers.
    incarnation = max(stored.incarnation for stored in run)
    taken = [place[1] for name in files.names(folder) if (place := place_of(name)) and place[0] == incarnation]
    path = folder / name_of(incarnation, max(taken, default=-1) + 1)
    header = Header(
        identity=identity,
        incarnation=incarnation,
        first=run[0].step,
        follows=before[0],
        chain=before[1],
        shift=run[0].shift,
    )
    end = encode_end(run[-1].step + 1, incarnation=incarnation, chain=run[-1].checksum)
    write_whole(files, path, header.encode() + b"".join(stored.raw for stored in run) + end)
    return f"{path}: steps {run[0].step} to {run[-1].step} were copied here, since this folder had no good copy of them"
