"""One step of AdamW on a flat piece, held against the optimizer itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.adamw import bits_equal, noise, pieces, trace
from zo_lightning.drain.adamw import ALIGNMENT, AdamWState, Hyper, forward, is_bitwise
from zo_lightning.drain.errors import DrainError

COUNT = 4099  # no multiple of a vector's length
HYPER = Hyper(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, t=1)


@pytest.mark.parametrize("size", [COUNT, 7, 1000, ALIGNMENT])
@pytest.mark.parametrize("kernel", ["for_loop", "foreach"])
def test_replay_has_the_optimizers_bits_however_the_tensor_is_cut(kernel: str, size: int) -> None:
    run = trace(noise(COUNT, 12), kernel=kernel, lr=lambda version: 1e-3 / version, weight_decay=0.1)
    for piece in pieces(COUNT, size):
        state = run.state(3)[piece]
        for version in range(4, 13):
            assert is_bitwise(run.hypers[version], state.param.device)
            forward(state, run.grads[version][piece], run.hypers[version])
        assert bits_equal(state, run.state(12)[piece])


def test_fused_differs_from_the_others_and_depends_on_the_cut() -> None:
    grads = noise(COUNT, 12)
    run = trace(grads, kernel="fused")
    assert not is_bitwise(run.hypers[12], torch.device("cpu"))
    loop = trace(grads).state(12)
    differing = (run.state(12).param != loop.param).float().mean().item()
    print(f"fused and for-loop differ in {differing:.2%} of the parameters after 12 steps")
    assert 0 < differing < 0.2

    def replayed(size: int) -> int:
        """Parameters that are not as they were."""
        wrong = 0
        for piece in pieces(COUNT, size):
            state = run.state(0)[piece]
            for version in range(1, 13):
                forward(state, grads[version - 1][piece], run.hypers[version])
            wrong += int((state.param != run.states[12].param[piece]).sum())
        return wrong

    print(f"of {COUNT} parameters differ where it is cut by 7: {replayed(7)}, by {ALIGNMENT}: {replayed(ALIGNMENT)}")
    assert replayed(7) > 0 == replayed(ALIGNMENT)


def test_a_skipped_step_changes_the_version_alone() -> None:
    run = trace(noise(COUNT, 2))
    state = run.state(1)
    forward(state, torch.full((COUNT,), torch.nan), replace(HYPER, skipped=True))
    assert bits_equal(state, replace(run.state(1), version=2))


def test_a_clipped_gradient_is_its_bfloat16_and_the_coefficient() -> None:
    """Clipping ends that every value is a bfloat16, so the log holds what stood before it."""
    logged = [grad.bfloat16() for grad in noise(COUNT, 3)]
    clip = torch.tensor(0.3).item()
    clipped = [grad.float().mul_(torch.tensor(0.3)) for grad in logged]  # as clip_grad_norm_ does
    run = trace(clipped)
    state = run.state(0)
    for version in range(1, 4):
        forward(state, logged[version - 1], replace(run.hypers[version], clip=clip))
    assert bits_equal(state, run.state(3))


def test_half_precision_goes_forward() -> None:
    grads = [grad.bfloat16() for grad in noise(COUNT, 5)]
    param = torch.nn.Parameter(torch.zeros(COUNT, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([param], lr=1e-2)
    state = AdamWState(**{name: torch.zeros_like(param.data) for name in ("param", "exp_avg", "exp_avg_sq")}, version=0)
    for t, grad in enumerate(grads, 1):
        param.grad = grad.clone()
        optimizer.step()
        forward(state, grad, Hyper.from_group(optimizer.param_groups[0], t=t))
    assert torch.equal(state.param, param)


@pytest.mark.parametrize("option", ["amsgrad", "maximize"])
def test_other_rules_are_refused(option: str) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], **{option: True})
    with pytest.raises(DrainError, match=option):
        Hyper.from_group(optimizer.param_groups[0], t=1)


def test_a_tensor_as_learning_rate_is_refused() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=torch.tensor(1e-3), foreach=False)
    with pytest.raises(DrainError, match="floats"):
        Hyper.from_group(optimizer.param_groups[0], t=1)
