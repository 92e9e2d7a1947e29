"""The step of AdamW undone: to the last bit but one, and with the account of what that leaves open.

The forward step rounds, so several states lead to the same next one, and no arithmetic can tell which it was: more bits
in the inverse do not help, other constants than the step's own float32 ones do harm.

Shapes: N = elements of one piece.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from zo_lightning.drain.adamw import AdamWState, Hyper, seen
from zo_lightning.drain.bounds import ErrorBound
from zo_lightning.drain.errors import DrainError

_WAY_OUT = "take target=newest, which only goes forward"
_RESIDUALS = f"roll back by residuals, which cost a few bits for each parameter, or {_WAY_OUT}"


def undo(state: AdamWState, grad_N: torch.Tensor, hyper: Hyper) -> None:
    """Go one step back in place, in exact arithmetic up to rounding; check nothing.

    Every device gives the same bits. The parameters take one float32 operation after the other, which leaves a
    compiler nothing to contract. The moments take float64, where the product of two float32 numbers is exact, and are
    rounded once.

    Args:
        state: float32, at the version that the step made.
        grad_N: as logged.
        hyper: of the step.
    """
    state.version -= 1
    if hyper.skipped:
        return
    grad_N = seen(grad_N, hyper).float()
    rest1, rest2 = (_float32(1 - beta) for beta in hyper.betas)
    update_N = (state.exp_avg * -hyper.step_size) / (state.exp_avg_sq.sqrt() / hyper.correction).add_(hyper.eps)
    state.param.sub_(update_N)
    if hyper.weight_decay != 0:
        state.param.div_(hyper.decay)
    if hyper.t == 1:
        state.exp_avg.zero_()
        state.exp_avg_sq.zero_()
        return
    square_N = (grad_N * rest2).double() * grad_N
    state.exp_avg.copy_((state.exp_avg.double() - grad_N.double() * rest1) / (1 - rest1))
    state.exp_avg_sq.copy_(state.exp_avg_sq.double() - square_N).div_(hyper.betas[1])
    state.exp_avg_sq.clamp_(min=0)  # rounding can bring it below, and a root comes next


def backward(state: AdamWState, grad_N: torch.Tensor, hyper: Hyper, bound: ErrorBound | None = None) -> None:
    """Go one step back in place, close to what was there.

    Args:
        state: at the version that the step made.
        grad_N: as logged.
        hyper: of the step.
        bound: of the error of ``state`` so far, to be carried on; none where nobody asks for it.

    Raises:
        DrainError: for a step that has no inverse; the state is as it was.
    """
    check_invertible(state, hyper)
    new = state.clone() if bound is not None else state
    undo(state, grad_N, hyper)
    if bound is not None and not hyper.skipped:
        bound.undo(new, state, seen(grad_N, hyper).float(), hyper)


def check_invertible(state: AdamWState, hyper: Hyper) -> None:
    """Refuse a step that arithmetic alone cannot undo.

    Raises:
        DrainError: with the reason and the way out.
    """
    kinds = {tensor.dtype for tensor in state.tensors().values()}
    if kinds != {torch.float32}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise DrainError(f"a state in {names} has lost too much to be rolled back: {_WAY_OUT}")
    if hyper.skipped:
        return
    if hyper.t <= 1:
        raise DrainError(f"the optimizer's first step cannot be undone, its moments were zero: {_RESIDUALS}")
    if min(*hyper.betas, hyper.decay) <= 0:
        raise DrainError(f"a step with betas={hyper.betas}, 1 - lr * weight_decay = {hyper.decay}: {_RESIDUALS}")


def roll_back(
    state: AdamWState, log: Mapping[int, tuple[torch.Tensor, Hyper]], version: int, *, bitwise_forward: bool = True
) -> ErrorBound:
    """Go back to a version in place, with a bound of the error.

    Args:
        state: exact, at a later version.
        log: gradient and settings by the version that their step made.
        version: where to.
        bitwise_forward: see ``ErrorBound``.

    Raises:
        DrainError: see ``check_invertible``; the state is then lost.
    """
    bound = ErrorBound.zero(state, bitwise_forward=bitwise_forward)
    while state.version > version:
        backward(state, *log[state.version], bound)
    return bound


def _float32(number: float) -> float:
    """The float32 that torch makes of a number which meets float32 tensors."""
    return torch.tensor(number, dtype=torch.float32).item()
