"""Which of a bank's slots cost time on a CPU: those that the points of an evaluation probe, and no others.

In float32 the sum ``P + coefficient * U`` loses nothing, so every point gets left factors of its own for the open
slots. All other slots do not change until the next stage begins: they are folded into a working copy of the weights,
made anew from the base at that moment, so that the rank of a bank costs no time and nothing drifts.

Shape suffixes: O rows and I columns stacked over all matrices, A points, C columns of the open slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zo_lightning.core.bank import Fold, LowRankBank


class OpenSlots:
    """Right factors ``right_CI`` of the open slots, and each point's left ones ``left_ACO``; float32.

    Args:
        bank: of the run.
        fold: makes the working copy: the base plus these factors, or the base alone where they have no columns. None:
            all slots stay open.
    """

    def __init__(self, bank: LowRankBank, fold: Fold | None) -> None:
        self._bank, self._fold = bank, fold
        self._open: list[int] | None = None  # None: nothing of what is held is the bank's
        self._generation = -1
        self._changed: set[int] = set()
        self.right_CI = torch.zeros(0, bank.layout.num_cols, device=bank.device)
        self.left_ACO = torch.zeros(0, 0, bank.layout.num_rows, device=bank.device)

    def program(self, points: Sequence[dict[int, torch.Tensor]]) -> None:
        """Make ``left_ACO[i]`` stand for the bank and the probes ``points[i]``, ``{slot: added left factors}``."""
        probed = {slot for probes in points for slot in probes}
        if (
            self._open is None
            or self._generation != self._bank.generation
            or not probed | self._changed <= {*self._open}
        ):
            self._arrange(probed)
        assert self._open is not None
        self._changed = set()
        if len(self.left_ACO) != len(points):
            self.left_ACO = self.left_ACO.new_empty(len(points), *self.left_ACO.shape[1:])
        for left_CO, probes in zip(self.left_ACO, points, strict=True):
            for place, slot in enumerate(self._open):
                left_RO, own_RO = self._bank.left_OC[:, self._bank.columns(slot)].T, left_CO[self._bank.columns(place)]
                if slot in probes:
                    torch.add(left_RO, probes[slot].T, out=own_RO)
                else:
                    own_RO.copy_(left_RO)

    def changed(self, slots: set[int]) -> None:
        """Note that a commit has changed slots of the bank."""
        self._changed |= slots

    def forget(self) -> None:
        """Note that bank or base are not what they were."""
        self._open = None

    def _arrange(self, probed: set[int]) -> None:
        """Choose the open slots and fold the others, by bank and probes alone: a resumed run computes the same bits."""
        bank, every = self._bank, range(self._bank.num_columns // self._bank.spec.rank)
        latest = set(every) if bank.latest is None else {bank.latest}
        self._open = [slot for slot in every if self._fold is None or slot in (probed or latest)]
        held = self._columns(self._open)
        self.right_CI = bank.right_IC[:, held].T.contiguous()
        self.left_ACO = self.left_ACO.new_empty(len(self.left_ACO), len(held), bank.layout.num_rows)
        if self._fold is not None:
            rest = self._columns([slot for slot in every if slot not in self._open])
            self._fold(bank.left_OC[:, rest], bank.right_IC[:, rest])
        self._generation = bank.generation

    def _columns(self, slots: Sequence[int]) -> list[int]:
        return [column for slot in slots for column in range(self._bank.num_columns)[self._bank.columns(slot)]]
