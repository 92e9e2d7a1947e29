"""What the host process does with a window: takes shards in, and replays each to the target's version.

Shapes: N = elements of one parameter or piece, flat.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import groupby, repeat
from typing import Any

import torch

from zo_lightning.drain.adamw import AdamWState, Hyper, forward_all
from zo_lightning.drain.bounds import ErrorBound, RelativeBound
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.messages import KEY, Setup, StepNote, TreeNote
from zo_lightning.drain.pieces import Piece
from zo_lightning.drain.residuals import undo_exactly
from zo_lightning.drain.rollback import roll_back
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


@dataclass(frozen=True, slots=True)
class _Undo:
    """What takes one step of a piece back."""

    version: int
    grad: torch.Tensor  # (N,)
    hyper: Hyper
    residuals: torch.Tensor | None  # (B,)


class Reconciler:
    """The windows of one run, one after another. Tensors given to it are copied or used up before it returns."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._live_digest: str | None
        self._tree: TreeNote | None
        self._rest_N: list[torch.Tensor]
        self._begin()

    def step(self, note: StepNote, tensors_N: Sequence[torch.Tensor]) -> None:
        """Take one step of a window.

        Args:
            note: of the step.
            tensors_N: as ``Setup.types`` lists them, and residuals if there are any.
        """
        if note.step == 0:
            self._begin()
        captured, logged = self._setup.captured[note.step], self._setup.logged[note.step]
        states_N, rest_N = tensors_N[: 3 * len(captured)], tensors_N[3 * len(captured) :]
        grads_N, residuals_B = rest_N[: len(logged)], rest_N[len(logged) :]
        pieces = [piece for _, piece in logged]
        if note.step <= self._setup.window.version:
            self._redo(note, pieces, grads_N)
        else:
            self._keep(note, pieces, grads_N, residuals_B or repeat(None))
        for index, (_, piece) in enumerate(captured):
            self._capture(note, piece, states_N[3 * index : 3 * index + 3])
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
            DrainError: if the replay has not the bits of the live state, though it should, or if a rollback may be
                further off than is allowed.
        """
        note, problem = self._tree, self._problem
        assert note is not None
        state = {role: [getattr(image, role) for image in self._images] for role in ROLES}
        bound, proven = self._bound(), self._is_live()
        tree = fill(note.tree, {**state, "rest": self._rest_N})
        self._begin()
        if problem is not None:
            raise problem
        bound.check(self._setup.tolerance)
        if self._setup.expects_bits and proven is False:
            raise DrainError("the replayed state differs from the live one: something beside AdamW changes it")
        if not self._setup.bitwise and not proven:
            bound = RelativeBound(**dict.fromkeys(ROLES, math.nan))  # another kernel's rounding: close, but not known
        tree[KEY]["bound"] = asdict(bound)
        return Snapshot(tree=tree, global_step=note.global_step, bound=max(astuple(bound)), proven=bool(proven))

    def _bound(self) -> RelativeBound:
        if all(bound is None for _, bound in self._bounds):
            return RelativeBound()
        return RelativeBound.over(self._bounds)

    def _is_live(self) -> bool | None:
        if self._live_digest is None:
            return None
        return digest(x for image in self._images for x in image.tensors().values()) == self._live_digest

    def _begin(self) -> None:
        self._images = [
            AdamWState(**{role: torch.empty(p.numel, dtype=p.dtype) for role in ROLES}, version=0)
            for p in self._setup.parameters
        ]
        self._states: dict[Piece, AdamWState] = {}
        self._undo: dict[Piece, list[_Undo]] = defaultdict(list)
        self._bounds: list[tuple[AdamWState, ErrorBound | None]] = []
        self._problem: DrainError | None = None
        self._live_digest = self._tree = None
        self._rest_N = []
        self._num_steps = 0

    def _redo(self, note: StepNote, pieces: Sequence[Piece], grads_N: Sequence[torch.Tensor]) -> None:
        """Do the step on pieces that were captured before it."""
        pairs = zip(pieces, grads_N, strict=True)
        for hyper, group in groupby(pairs, key=lambda pair: note.hypers[pair[0].param]):
            redone, logged_N = zip(*group, strict=True)
            forward_all([self._states[piece] for piece in redone], logged_N, hyper)

    def _keep(
        self,
        note: StepNote,
        pieces: Sequence[Piece],
        grads_N: Sequence[torch.Tensor],
        residuals_B: Iterable[torch.Tensor | None],
    ) -> None:
        """Keep what takes the step back, once the pieces are captured."""
        for piece, grad_N, packed_B in zip(pieces, grads_N, residuals_B):  # noqa: B905  the last may be endless
            kept_B = None if packed_B is None else packed_B.clone()
            self._undo[piece].append(_Undo(note.step, grad_N.clone(), note.hypers[piece.param], kept_B))

    def _capture(self, note: StepNote, piece: Piece, state_N: Sequence[torch.Tensor]) -> None:
        image = self._images[piece.param]
        views = {name: tensor[piece.start : piece.stop] for name, tensor in image.tensors().items()}
        for view_N, value_N in zip(views.values(), state_N, strict=True):
            view_N.copy_(value_N)
        state = self._states[piece] = AdamWState(**views, version=note.step)
        try:
            self._bounds.append((state, self._roll_back(state, self._undo.pop(piece, []))))
        except DrainError as error:
            self._problem = error

    def _roll_back(self, state: AdamWState, steps: Sequence[_Undo]) -> ErrorBound | None:
        """Bring a piece from after the target back to it, exactly or with a bound."""
        if steps and self._setup.rollback == "guarded":
            log = {step.version: (step.grad, step.hyper) for step in steps}
            return roll_back(state, log, self._setup.window.version, bitwise_forward=self._setup.bitwise)
        for step in reversed(steps):
            assert step.residuals is not None
            undo_exactly(state, step.grad, step.hyper, step.residuals)
        return None
