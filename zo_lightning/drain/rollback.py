"""The step of AdamW undone: to the last bit but one, and with the account of what that leaves open.

The forward step rounds, so several states lead to the same next one, and no arithmetic can tell which it was: more bits
in the inverse do not help, other constants than the step's own float32 ones do harm.

Shapes: N = elements of one piece, n = of a block of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from zo_lightning.drain.adamw import AdamWState, Hyper, blocks, seen
from zo_lightning.drain.bounds import ErrorBound
from zo_lightning.drain.errors import DrainError

_NEWEST = "take `checkpoint.drain.target=newest`, which only goes forward"
_RESIDUALS = f"take `checkpoint.drain.rollback=residuals`, which costs a few bits for each parameter, or {_NEWEST}"


def undo(state: AdamWState, grad_N: torch.Tensor, hyper: Hyper) -> None:
    """Go one step back in place, as exactly as can be told from the new state; check nothing.

    The operations are the forward step's in reverse order, each rounded to float32: the second moment comes out exact
    mostly, because what was added is taken off the same grid. Products that meet a sum are made in float64, where they
    are exact, roots are rounded from there, and divisors are tensors, for which no kernel puts a reciprocal: so no
    compiler and no library can round in another place.

    Args:
        state: float32, at the version that the step made.
        grad_N: as logged.
        hyper: of the step.
    """
    state.version -= 1
    if hyper.skipped:
        return
    for block in blocks(state.param):
        _undo(state[block], seen(grad_N[block], hyper).float(), hyper)


def _undo(state: AdamWState, grad_n: torch.Tensor, hyper: Hyper) -> None:
    def number(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((), value, dtype=dtype, device=grad_n.device)

    param_n, first_n, second_n = state.tensors().values()
    root_n = second_n.double().sqrt_().float()  # torch's float32 root is not always the nearest
    param_n.sub_((first_n * -hyper.step_size) / (root_n / number(hyper.correction)).add_(hyper.eps))
    if hyper.weight_decay != 0:
        param_n.div_(number(hyper.decay))
    if hyper.t == 1:  # what stood before is known
        first_n.zero_()
        second_n.zero_()
        return
    rest1, rest2 = (_float32(1 - beta) for beta in hyper.betas)
    kept_n = first_n.double() - grad_n.double() * rest1
    first_n.copy_(kept_n / number(1 - rest1, torch.float64))
    second_n.copy_(second_n.double() - (grad_n * rest2).double() * grad_n)
    second_n.div_(number(hyper.betas[1])).clamp_(min=0)  # rounding can bring it below, and a root comes next


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
        raise DrainError(f"a state in {names} has lost too much to be rolled back: {_NEWEST}")
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
        DrainError: see ``check_invertible``; the state is as it was.
    """
    for step in range(version + 1, state.version + 1):
        check_invertible(state, log[step][1])
    bounds = []
    for block in blocks(state.param):
        part = state[block]
        bounds.append(ErrorBound.zero(part, bitwise_forward=bitwise_forward))
        while part.version > version:
            grad_N, hyper = log[part.version]
            backward(part, grad_N[block], hyper, bounds[-1])
    state.version = version
    return ErrorBound.joined(bounds)


def _float32(number: float) -> float:
    """The float32 that torch makes of a number which meets float32 tensors."""
    return torch.tensor(number, dtype=torch.float32).item()
