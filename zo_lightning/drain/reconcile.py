"""What the host process does with a window: takes shards in, and replays each to the target's version.

Shapes: N = elements of one parameter or piece, flat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zo_lightning.drain.adamw import AdamWState, Hyper, forward
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.messages import Setup, StepNote, TreeNote
from zo_lightning.drain.pieces import Piece
from zo_lightning.drain.tree import digest, fill

ROLES = ("param", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A checkpoint at one version, its tensors no longer shared with anything.

    Attributes:
        tree: as Lightning makes it.
        global_step: of the run.
        bound: largest relative error of parameters or moments; 0 where they are bitwise.
        proven: whether the replayed state has the live digest.
    """

    tree: Any
    global_step: int
    bound: float
    proven: bool


class Reconciler:
    """The windows of one run, one after another. Tensors given to it are copied or used up before it returns."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._begin()

    def step(self, note: StepNote, tensors_N: Sequence[torch.Tensor]) -> None:
        """Take one step of a window.

        Args:
            note: of the step.
            tensors_N: as ``Setup.types`` lists them.
        """
        if note.step == 0:
            self._begin()
        captured = self._setup.captured(note.step)
        num_states = 3 * len(captured)
        for grad_N, (shard, piece) in zip(tensors_N[num_states:], self._setup.logged(note.step), strict=True):
            self._gradient(note, shard, piece, grad_N)
        for index, (_, piece) in enumerate(captured):
            self._capture(note, piece, tensors_N[3 * index : 3 * index + 3])
        if note.step == self._setup.window.version:
            self._live_digest = note.digest
        self._num_steps = note.step + 1

    def tree(self, note: TreeNote, tensors_N: Sequence[torch.Tensor]) -> None:
        """Take the checkpoint of the target's step.

        Args:
            note: its containers.
            tensors_N: as ``TreeNote.tensors`` lists them.
        """
        self._tree, self._rest_N = note, [tensor.clone() for tensor in tensors_N]

    @property
    def complete(self) -> bool:
        """Whether the snapshot can be finished."""
        return self._tree is not None and self._num_steps == self._setup.num_shards

    def finish(self) -> Snapshot:
        """The snapshot of the window, once.

        Raises:
            DrainError: if the replay has not the bits of the live state, though it should.
        """
        note, state = self._tree, {role: [getattr(image, role) for image in self._images] for role in ROLES}
        assert note is not None
        proven = self._check_bits()
        tree = fill(note.tree, {**state, "rest": self._rest_N})
        self._begin()
        return Snapshot(tree=tree, global_step=note.global_step, bound=0.0, proven=proven)

    def _check_bits(self) -> bool:
        if self._live_digest is None:
            return False
        same = digest(x for image in self._images for x in image.tensors().values()) == self._live_digest
        if self._setup.bitwise and not same:
            raise DrainError("the replayed state differs from the live one: something beside AdamW changes it")
        return same

    def _begin(self) -> None:
        self._images = [
            AdamWState(**{role: torch.empty(p.numel, dtype=p.dtype) for role in ROLES}, version=0)
            for p in self._setup.parameters
        ]
        self._states: dict[Piece, AdamWState] = {}
        self._later: dict[Piece, list[tuple[torch.Tensor, Hyper]]] = defaultdict(list)
        self._live_digest: str | None = None
        self._tree: TreeNote | None = None
        self._rest_N: list[torch.Tensor] = []
        self._num_steps = 0

    def _gradient(self, note: StepNote, shard: int, piece: Piece, grad_N: torch.Tensor) -> None:
        hyper = note.hypers[piece.param]
        if self._setup.window.captured(shard) < note.step:
            forward(self._states[piece], grad_N, hyper)
        else:
            self._later[piece].append((grad_N.clone(), hyper))

    def _capture(self, note: StepNote, piece: Piece, state_N: Sequence[torch.Tensor]) -> None:
        image = self._images[piece.param]
        views = {name: tensor[piece.start : piece.stop] for name, tensor in image.tensors().items()}
        for view_N, value_N in zip(views.values(), state_N, strict=True):
            view_N.copy_(value_N)
        self._states[piece] = AdamWState(**views, version=note.step)
