"""Where in a run's folder its checkpoints lie."""

from __future__ import annotations

from pathlib import Path

CHECKPOINTS = Path("checkpoints")  # in the run's folder
CHECKPOINT = CHECKPOINTS / "last.ckpt"  # at the run's end
STORE = CHECKPOINTS / "store"
JOURNAL = CHECKPOINTS / "journal"
_RANK = "rank"


def rank_folder(journal: Path, rank: int) -> Path:
    """The journal of one rank.

    Examples:
        >>> rank_folder(Path("journal"), 1).as_posix()
        'journal/rank1'
    """
    return journal / f"{_RANK}{rank}"


def rank_folders(journal: Path) -> list[Path]:
    """The journals that there are, the first rank's first."""
    found = [path for path in journal.glob(f"{_RANK}*") if path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(_RANK)))


def has_steps(journal: Path) -> bool:
    """Whether a step was written; the folders are there before."""
    return any(journal.glob(f"{_RANK}*/*.wal"))
