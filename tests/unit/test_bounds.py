"""No element of a replay is further off than its bound, whatever the gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.adamw import BETAS, Trace, embedding, errors, log_of, noise, spiked, student, trace
from zo_lightning.drain.adamw import AdamWState, Hyper
from zo_lightning.drain.bounds import UNIT, ErrorBound, RelativeBound
from zo_lightning.drain.rollback import backward

COUNT = 20_000
WARM = 50
NAMES = ("param", "exp_avg", "exp_avg_sq")
GRADIENTS: dict[str, Callable[[int, int], list[torch.Tensor]]] = {
    "heavy tails": student,
    "embedding": embedding,
    "spike": lambda count, steps: spiked(count, steps, steps - 8, 1e3),
}


def worst_ratio(run: Trace, start: int, stop: int, *, bitwise_forward: bool = True) -> dict[str, float]:
    """The highest error over bound of any element on the way back."""
    state, log = run.state(start), log_of(run)
    bound, worst = ErrorBound.zero(state, bitwise_forward=bitwise_forward), dict.fromkeys(NAMES, 0.0)
    while state.version > stop:
        backward(state, *log[state.version], bound)
        for name, true in run.states[state.version].tensors().items():
            off = (state.tensors()[name].double() - true.double()).abs() / getattr(bound, name)
            worst[name] = max(worst[name], off.max().item())
    return worst


@pytest.mark.parametrize("decay", [0.0, 0.1, 100.0])
@pytest.mark.parametrize("factor", [1.0, 100.0, 1e5])
def test_the_bound_holds_for_every_element(factor: float, decay: float) -> None:
    """Over 64 steps, one of them a spike, with lr * weight_decay up to 0.16."""
    worst = worst_ratio(trace(spiked(COUNT, WARM + 64, WARM + 30, factor), weight_decay=decay), WARM + 64, WARM)
    print(f"spike x{factor:g}, decay {decay:g}: error over bound at most {worst}")
    assert all(ratio < 1 for ratio in worst.values())


@pytest.mark.parametrize("kind", ["heavy tails", "embedding"])
@pytest.mark.parametrize("kernel", ["for_loop", "fused"])
def test_the_bound_holds_for_other_gradients_and_kernels(kernel: str, kind: str) -> None:
    run = trace(GRADIENTS[kind](COUNT, WARM + 16), kernel=kernel, betas=(0.9, 0.95))
    worst = worst_ratio(run, WARM + 16, WARM, bitwise_forward=kernel != "fused")
    print(f"{kernel}, {kind}: error over bound at most {worst}")
    assert all(ratio < 1 for ratio in worst.values())


def otherwise(state: AdamWState, grad: torch.Tensor, hyper: Hyper) -> None:
    """The same step as another device may round it: no fused multiply-adds, reciprocals for quotients."""
    rest1, rest2 = (1 - beta for beta in hyper.betas)
    state.version += 1
    state.param.mul_(hyper.decay)
    state.exp_avg.add_((grad - state.exp_avg) * rest1)
    state.exp_avg_sq.copy_(state.exp_avg_sq * hyper.betas[1] + grad * grad * rest2)
    denominator = state.exp_avg_sq.sqrt() * (1 / torch.tensor(hyper.correction)) + hyper.eps
    state.param.sub_(state.exp_avg * (1 / denominator) * hyper.step_size)


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("kernel", ["fused", "otherwise"])
def test_a_replay_with_other_roundings_stays_within_its_bound(kernel: str, kind: str) -> None:
    """As the replay of a GPU's run on CPU: not bitwise, but known to be close."""
    last = WARM + 16
    grads = GRADIENTS[kind](COUNT, last)
    run = trace(grads, kernel="fused")
    live, state = run.state(WARM), run.state(WARM)
    bound, worst = ErrorBound.zero(state, bitwise_forward=False), dict.fromkeys(NAMES, 0.0)
    for version in range(WARM + 1, last + 1):
        step = grads[version - 1], replace(run.hypers[version], fused=False)
        if kernel == "fused":
            live = run.state(version)
        else:
            otherwise(live, *step)
        bound.forward(state, *step)
        for name, true in live.tensors().items():
            off = (state.tensors()[name].double() - true.double()).abs() / getattr(bound, name)
            worst[name] = max(worst[name], off.max().item())
    off, printed = errors(state, live), RelativeBound.over([(state, bound)])
    print(f"{kernel}, {kind}: p off by {off['param']:.1e}; bound: {printed}; error over bound at most {worst}")
    assert 0 < max(worst.values()) < 1 and printed.param < 1e-4


def test_the_simpler_bound_of_the_first_moment_does_not_hold() -> None:
    """(E + u |m_new|) / b + 3 u |m_old| leaves out that g - m is rounded."""
    run = trace(noise(COUNT, WARM))
    state = run.state(WARM)
    backward(state, run.grads[WARM], run.hypers[WARM])
    simple = UNIT * run.states[WARM].exp_avg.abs() / BETAS[0] + 3 * UNIT * state.exp_avg.abs()
    ratio = ((state.exp_avg - run.states[WARM - 1].exp_avg).abs() / simple).max().item()
    print(f"error over the simpler bound {ratio:.2f}")
    assert 1 < ratio < 2
