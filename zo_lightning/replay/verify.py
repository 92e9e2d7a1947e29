"""A whole run held against itself: every rank's journal, and every checkpoint against its replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zo_lightning.backends.digest import digest_factors
from zo_lightning.checkpoint.journal import read_journal
from zo_lightning.checkpoint.places import JOURNAL, STORE, rank_folders
from zo_lightning.checkpoint.store import Store
from zo_lightning.errors import ZOError
from zo_lightning.modules.checkpoint import KEY
from zo_lightning.replay.rebuild import Replay
from zo_lightning.replay.run import Run, Saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was verified."""

    what: str
    steps: int
    found: str
    good: bool


def verify(run: Run, replay: Replay) -> Iterator[Line]:
    """Verify a run; the replay goes over all of it.

    Args:
        run: the run.
        replay: of it, not begun.
    """
    yield from _journals(run)
    yield from _store(run)
    for path, wrong in run.unreadable.items():
        yield Line(what=str(path), steps=0, found=wrong, good=False)
    for saved in run.saved:
        if saved.step <= run.num_steps:
            yield _snapshot(saved, replay)
    replay.reach(run.num_steps)


def _journals(run: Run) -> Iterator[Line]:
    chain = run.recovered.chain
    for folder in rank_folders(run.folder / JOURNAL):
        try:
            alone = read_journal(folder)
        except ZOError as error:
            yield Line(what=folder.name, steps=0, found=str(error), good=False)
            continue
        same = [s.checksum for s in alone.chain] == [s.checksum for s in chain[: len(alone.chain)]]
        behind = len(chain) - len(alone.chain)
        found = [
            f"{len(alone.segments)} segment{'s' if len(alone.segments) != 1 else ''}",
            *(["parts from the first rank's"] if not same else []),
            *([f"{behind} steps behind"] if same and behind else []),
            *alone.problems,
        ]
        yield Line(what=folder.name, steps=len(alone.entries), found="; ".join(found), good=same)


def _store(run: Run) -> Iterator[Line]:
    """Each manifest and block that is bad, though the newest snapshot may do without it."""
    if not (run.folder / STORE).is_dir():
        return
    store = Store([run.folder / STORE])
    files = store.verify()
    problems = [file.problem for file in files if file.problem is not None]
    found = "; ".join(problems) or f"{len(files)} files, all as they were written"
    yield Line(what=str(run.folder / STORE), steps=max(store.steps(), default=0), found=found, good=not problems)


def _snapshot(saved: Saved, replay: Replay) -> Line:
    try:
        kept = saved.load()[KEY]
        replay.reach(saved.step)
    except ZOError as error:
        return Line(what=saved.name, steps=saved.step, found=str(error), good=False)
    found = digest_factors(kept["bank"])
    if found != kept.get("digest", found):
        return Line(what=saved.name, steps=saved.step, found="is not what the run held when it was saved", good=False)
    if replay.begun_from == saved:
        return Line(
            what=saved.name,
            steps=saved.step,
            found="where the replay begins: the journal has no step before it",
            good=True,
        )
    good = found == replay.digest
    about = "equal to its replay, bit for bit" if good else "differs from its replay"
    return Line(what=saved.name, steps=saved.step, found=about, good=good)
