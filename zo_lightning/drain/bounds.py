"""How far a state that was rolled back can be from the one that was there.

Shapes: N = elements of one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import torch

from zo_lightning.drain.adamw import AdamWState, Hyper, blocks, forward, seen
from zo_lightning.drain.errors import DrainError

UNIT = 2.0**-24
"""Relative error of one rounding to float32."""
_NAMES = ("param", "exp_avg", "exp_avg_sq")
_SLACK = 1 + 2.0**-16  # products of two errors, and what the bound's own arithmetic rounds
_DENORMAL = 2.0**-147  # what rounding costs where float32 ends
_ZERO = 1e-30  # a norm below counts as this


@dataclass(slots=True, kw_only=True)
class ErrorBound:
    """Elementwise bounds of a rolled back state's absolute errors, carried from step to step.

    With u one rounding, x the moment, b its beta, g the gradient and E its bound: forward, the decayed moment and the
    sum are rounded, and for the first moment g - x; backward, the result. What stood before is divided by b, hence

        E(v) <- (E + u v_new) / b + 3 u v_old
        E(m) <- (E + u |m_new| + 2 u (1 - b) (|g| + |m_old|)) / b + 3 u |m_old|

    so the first grows as b1^-n. The update of the parameters is lr m / (sqrt(v) + eps) up to the corrections, and moves
    by what m and v can move, v at worst downwards.

    Attributes:
        param: of shape (N,).
        exp_avg: (N,).
        exp_avg_sq: (N,).
        bitwise_forward: ``forward`` has the bits of the steps that were done (``adamw.is_bitwise``); if not, products
            may have been rounded in another place than where they are undone.
    """

    param: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    bitwise_forward: bool

    @classmethod
    def zero(cls, state: AdamWState, *, bitwise_forward: bool = True) -> ErrorBound:
        """The bound of a state that is exact."""
        zeros = {name: torch.zeros_like(tensor) for name, tensor in state.tensors().items()}
        return cls(**zeros, bitwise_forward=bitwise_forward)

    @classmethod
    def joined(cls, bounds: Sequence[ErrorBound]) -> ErrorBound:
        """The bound of pieces that are put together again."""
        whole = {name: torch.cat([getattr(bound, name) for bound in bounds]) for name in _NAMES}
        return cls(**whole, bitwise_forward=bounds[0].bitwise_forward)

    def __getitem__(self, piece: slice) -> ErrorBound:
        """A view of some of the elements."""
        parts = {name: getattr(self, name)[piece] for name in _NAMES}
        return ErrorBound(**parts, bitwise_forward=self.bitwise_forward)

    def forward(self, state: AdamWState, grad_N: torch.Tensor, hyper: Hyper) -> None:
        """Do a step that was done elsewhere with other roundings, and carry the bound of the difference.

        Args:
            state: at the version before the step, replayed or captured; advanced in place.
            grad_N: as logged.
            hyper: of the step.
        """
        old = state.clone()
        forward(state, grad_N, hyper)
        if not hyper.skipped:
            for block in blocks(state.param):
                self[block]._redo(old[block], state[block], seen(grad_N[block], hyper).float(), hyper)

    def _redo(self, old: AdamWState, new: AdamWState, grad_N: torch.Tensor, hyper: Hyper) -> None:
        """What both sides can have rounded, on top of what the difference before the step becomes."""
        (beta1, beta2), size_N = hyper.betas, grad_N.abs()
        first_N = new.exp_avg.abs() + 2 * (1 - beta1) * (size_N + old.exp_avg.abs())
        self._set("exp_avg", beta1 * self.exp_avg + 2 * UNIT * first_N)
        second_N = new.exp_avg_sq + beta2 * old.exp_avg_sq + 2 * (1 - beta2) * size_N.square()
        self._set("exp_avg_sq", beta2 * self.exp_avg_sq + 2 * UNIT * second_N)
        kept_N = 2 * UNIT * (new.param.abs() + old.param.abs()) + self._update(new, hyper)
        self._set("param", abs(hyper.decay) * self.param + kept_N)

    def undo(self, new: AdamWState, old: AdamWState, grad_N: torch.Tensor, hyper: Hyper) -> None:
        """Carry the bound over one step back.

        Args:
            new: the state before, which has this bound.
            old: the state one step back.
            grad_N: float32, as the optimizer saw it.
            hyper: of the step.
        """
        kept_N = self.param + self._update(new, hyper) + UNIT * new.param.abs()
        self._set("param", kept_N / hyper.decay + 3 * UNIT * old.param.abs())
        (beta1, beta2), size_N = hyper.betas, grad_N.abs()
        shares_N = 2 * (1 - beta1) * (size_N + old.exp_avg.abs())
        first_N = self.exp_avg + UNIT * (new.exp_avg.abs() + shares_N)
        self._set("exp_avg", first_N / beta1 + 3 * UNIT * old.exp_avg.abs())
        products = 0 if self.bitwise_forward else 4 * (1 - beta2) * size_N.square()
        second_N = self.exp_avg_sq + UNIT * (new.exp_avg_sq + products)
        self._set("exp_avg_sq", second_N / beta2 + 3 * UNIT * old.exp_avg_sq)

    def _set(self, name: str, bound_N: torch.Tensor) -> None:
        getattr(self, name).copy_(bound_N.mul_(_SLACK).add_(_DENORMAL))

    def _update(self, new: AdamWState, hyper: Hyper) -> torch.Tensor:
        """How much the update that is taken back can differ from the one that was added (N,)."""

        def denominator(square_N: torch.Tensor) -> torch.Tensor:
            return square_N.clamp(min=0).sqrt_().div_(hyper.correction).add_(hyper.eps)

        low_N, used_N, high_N = (denominator(new.exp_avg_sq + sign * self.exp_avg_sq) for sign in (-1, 0, 1))
        size_N = new.exp_avg.abs()
        off_N = size_N / used_N * torch.maximum(used_N / low_N - 1, 1 - used_N / high_N) + self.exp_avg / low_N
        # seven roundings each way, with a reciprocal and a root that is off in its last bit
        return (off_N + 14 * UNIT * size_N / used_N) * hyper.step_size


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeBound:
    """Bounds of relative L2 errors, to be printed with a checkpoint; all 0 for one that is exact."""

    param: float = 0.0
    exp_avg: float = 0.0
    exp_avg_sq: float = 0.0

    @classmethod
    def over(cls, pieces: Iterable[tuple[AdamWState, ErrorBound | None]]) -> RelativeBound:
        """The bound over all pieces of a checkpoint, each with its own or with none because it is exact."""
        errors, values = dict.fromkeys(_NAMES, 0.0), dict.fromkeys(_NAMES, 0.0)
        for state, bound in pieces:
            for name in _NAMES:
                values[name] += _square(getattr(state, name))
                errors[name] += 0.0 if bound is None else _square(getattr(bound, name))
        return cls(**{name: errors[name] ** 0.5 / max(values[name] ** 0.5, _ZERO) for name in _NAMES})

    def check(self, tolerance: float) -> None:
        """Refuse a checkpoint that may be further off than is allowed. A bound that is not a number is refused too.

        Raises:
            DrainError: with the bounds and the ways out.

        Examples:
            >>> RelativeBound(param=1e-7).check(1e-6)
            >>> RelativeBound(param=float("nan")).check(1e-6)
            Traceback (most recent call last):
                ...
            zo_lightning.drain.errors.DrainError: rolled back, the checkpoint may be off by param nan, ...
        """
        if not all(value <= tolerance for value in astuple(self)):
            raise DrainError(
                f"rolled back, the checkpoint may be off by {self}, more than "
                f"`checkpoint.drain.tolerance={tolerance:g}`: take "
                "`checkpoint.drain.rollback=residuals` or `checkpoint.drain.target=newest`, or allow more"
            )

    def __str__(self) -> str:
        return f"param {self.param:.1e}, exp_avg {self.exp_avg:.1e}, exp_avg_sq {self.exp_avg_sq:.1e}"


def _square(tensor_N: torch.Tensor) -> float:
    return tensor_N.double().square().sum().item()
