"""What a saver in the background answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What became of the saves so far.

    Attributes:
        saves: that are in at least one tier.
        incomplete: of these, with a tier that did not take it or another complaint.
        failures: given up after all attempts.
        dropped: not begun, since a newer one came before the disk was ready.
        failed_drills: restores that failed or gave another digest.
        last_saved_step: none yet, or the newest.
        last_verified_step: the newest whose restore gave the live digest.
        seconds: spent in saves that succeeded.
    """

    saves: int
    incomplete: int
    failures: int
    dropped: int
    failed_drills: int
    last_saved_step: int | None
    last_verified_step: int | None
    seconds: float
