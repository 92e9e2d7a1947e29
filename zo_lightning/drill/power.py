"""Cut the power at every moment of a journal's and a store's life, and see what comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zo_lightning.checkpoint.journal import Journal, read_journal
from zo_lightning.checkpoint.journal.writer import Fsync
from zo_lightning.checkpoint.store import Store
from zo_lightning.drill.crash_images import crash_images, materialise
from zo_lightning.drill.report import Findings
from zo_lightning.drill.specimens import IDENTITY, SEGMENT_BYTES, HeldFiles, entry, tree
from zo_lightning.drill.trace import RecordingFiles
from zo_lightning.errors import ZOError

# A journal without fsync promises nothing here. One whose records are gone while later ones are left says so and asks.
MAY_REFUSE = "journal_none"
_STEPS = 8
# Acknowledged steps that a loss of power may take.
LOST: dict[Fsync, int] = {"none": _STEPS, "overlapped": 1, "sync": 0}
Check = Callable[[HeldFiles, Path, int], str | None]


def drill(folder: Path, *, cap: int, seed: int) -> Findings:
    """Try the images of a journal in each mode, and of a store.

    Args:
        folder: gets what was recorded, and the images that do not hold.
        cap: images of each; with more, so many are drawn.
        seed: of the drawing.
    """
    found = Findings({"images_tried": 0, "images_violating": 0, "images_refused": 0})
    for mode in LOST:
        place = folder / f"journal_{mode}"
        files = _recorded(place)
        _write_journal(place, files, mode)
        found.add(_tried(place, files, _check_journal, cap, seed))
    place = folder / "store"
    files = _recorded(place)
    _write_store(place, files)
    found.add(_tried(place, files, _check_store, cap, seed))
    return found


def _recorded(place: Path) -> RecordingFiles:
    place.mkdir(parents=True)
    return RecordingFiles(place)


def _write_journal(place: Path, files: RecordingFiles, mode: Fsync) -> None:
    """Two lives with a roll each; after each step, so many are promised as the mode may not lose."""
    for steps in (range(_STEPS // 2), range(_STEPS // 2, _STEPS)):
        journal = Journal(place / "journal", IDENTITY, fsync=mode, files=files, segment_bytes=SEGMENT_BYTES)
        for step in steps:
            journal.append(entry(step))
            files.promise(str(max(0, step + 1 - LOST[mode])))
        journal.close()


def _check_journal(files: HeldFiles, place: Path, promised: int) -> str | None:
    entries = read_journal(place / "journal", files=files).entries
    steps = len(entries)
    if repr(entries) != repr({step: entry(step) for step in range(steps)}):
        return f"steps {list(entries)} are not those that were appended"
    return f"{steps} steps are left of {promised} that were promised" if steps < promised else None


def _write_store(place: Path, files: RecordingFiles) -> None:
    store = Store([place / "store"], keep=1, files=files)
    for step in (1, 2):
        store.save(step, tree(step), f"digest {step}")
        files.promise(str(step))


def _check_store(files: HeldFiles, place: Path, promised: int) -> str | None:
    store = Store([place / "store"], files=files)
    if not promised and not store.steps():
        return None
    loaded = store.load()
    if repr(loaded.tree) != repr(tree(loaded.step)) or loaded.digest != f"digest {loaded.step}":
        return f"the checkpoint of step {loaded.step} is not what was saved"
    return f"step {loaded.step} comes back after step {promised} was saved" if loaded.step < promised else None


def _tried(place: Path, files: RecordingFiles, check: Check, cap: int, seed: int) -> Findings:
    found, refused, faults = crash_images(files.trace(), cap=cap, seed=seed), 0, []
    for number, image in enumerate(found.images):
        held = HeldFiles({place / name: content for name, content in image.files.items()})
        try:
            problem = check(held, place, int(image.promised[-1]) if image.promised else 0)
        except ZOError as error:
            problem = f"it is refused: {error}"
            if place.name == MAY_REFUSE:
                refused += 1
                continue
        if problem:
            kept = place / f"image{number:05d}"
            kept.mkdir()
            materialise(image, kept)
            faults.append(f"{kept} (seed {seed}): {problem}")
    counts = {"images_tried": len(found.images), "images_violating": len(faults), "images_refused": refused}
    return Findings(counts, faults)
