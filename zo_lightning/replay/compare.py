"""Where two runs part, and how far apart they are.

Shape suffixes: O rows and I columns of a matrix, C and D rank columns of two runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from zo_lightning.checkpoint.journal import Entry
from zo_lightning.core.bank import LowRankBank, check_matrices
from zo_lightning.errors import ConfigError
from zo_lightning.replay.rebuild import FactorHolder, Replay
from zo_lightning.replay.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first step that two runs do not share, and what differs in it."""

    step: int
    what: tuple[str, ...]


def parting(run: Run, other: Run) -> Parting | None:
    """Compare two runs' records; None where they agree as far as both go."""
    for step in sorted(run.entries.keys() & other.entries.keys()):
        found = tuple(_differences(run.entries[step], other.entries[step]))
        if found:
            return Parting(step=step, what=found)
    return None


def _differences(one: Entry, two: Entry) -> list[str]:
    pairs = {
        "skipped": (one.record.skipped, two.record.skipped),
        "lr": (one.record.lr, two.record.lr),
        "directions": (tuple(k for k, _ in one.record.terms), tuple(k for k, _ in two.record.terms)),
        "coefficients": (tuple(c for _, c in one.record.terms), tuple(c for _, c in two.record.terms)),
        "loss": (one.loss, two.loss),
        "cursor": (one.cursor, two.cursor),
        "aux": (one.aux, two.aux),
    }
    # By text: a NaN is itself.
    return [f"{name}: {a} and {b}" for name, (a, b) in pairs.items() if repr(a) != repr(b)]


def distance(replay: Replay, other: Replay) -> float:
    """Norm of the difference of what two runs have added to the base, over the norm of what the second has.

    Args:
        replay: of a run.
        other: of a run on the same model.

    Raises:
        ConfigError: if the models differ, or a merge has written into the base.
    """
    if replay.digest == other.digest:
        return 0.0
    holders = replay.holder, other.holder
    if not (isinstance(holders[0], FactorHolder) and isinstance(holders[1], FactorHolder)):
        raise ConfigError("runs with `bank.policy=merge` cannot be compared by their factors: compare exports of them")
    check_matrices(replay.snapshot, holders[1].bank.layout)
    return bank_distance(holders[0].bank, holders[1].bank)


def bank_distance(bank: LowRankBank, other: LowRankBank) -> float:
    """See ``distance``; by products of the factors in float64: ``|P V^T - Q W^T|^2`` without a matrix of that size.

    Differences below about 1e-8 of the whole are lost in it.
    """
    total = own = 0.0
    for rows, cols in zip(bank.row_spans, bank.col_spans, strict=True):
        left_OC, right_IC = bank.left_OC[rows].double(), bank.right_IC[cols].double()
        left_OD, right_ID = other.left_OC[rows].double(), other.right_IC[cols].double()
        own_squared = float(((left_OD.T @ left_OD) * (right_ID.T @ right_ID)).sum())
        squared = float(((left_OC.T @ left_OC) * (right_IC.T @ right_IC)).sum())
        both = float(((left_OC.T @ left_OD) * (right_IC.T @ right_ID)).sum())
        total, own = total + squared + own_squared - 2 * both, own + own_squared
    return math.sqrt(max(total, 0.0) / own) if own else (math.inf if total else 0.0)
