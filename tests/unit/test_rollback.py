"""What a rollback by arithmetic can do, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.adamw import BETAS, Trace, bits_equal, embedding, errors, log_of, noise, spiked, student, trace
from zo_lightning.drain.adamw import AdamWState, Hyper
from zo_lightning.drain.bounds import UNIT, RelativeBound
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.rollback import backward, check_invertible, roll_back, undo

COUNT = 20_000
WARM = 50
NAMES = ("param", "exp_avg", "exp_avg_sq")
TOLERANCE = 1e-5


def new_share(run: Trace, version: int) -> torch.Tensor:
    """a, the new gradient's part of the second moment: what published guards look at."""
    share = (1 - run.hypers[version].betas[1]) * run.grads[version].square() / run.states[version].exp_avg_sq
    return share.masked_fill(run.grads[version] == 0, 0.0)


def threshold(tolerance: float) -> float:
    """The share up to which one step back keeps a relative error, from u (3 + 1 / (1 - a))."""
    return 1 - 1 / (tolerance / UNIT - 3)


def test_thresholds() -> None:
    assert threshold(1e-6) == pytest.approx(0.927, abs=5e-4) and threshold(1e-5) == pytest.approx(0.9939, abs=5e-5)


# exp_avg after so many steps back, as published
@pytest.mark.parametrize(("steps", "published"), [(8, 1.9e-7), (16, 5e-7), (32, 2.8e-6), (64, 8e-5), (128, 6.7e-2)])
def test_the_first_moments_error_grows_exponentially(steps: int, published: float) -> None:
    run = trace(noise(COUNT, WARM + 128))
    state = run.state(WARM + steps)
    bound = RelativeBound.over([(state, roll_back(state, log_of(run), WARM))])
    off = errors(state, run.states[WARM])
    print(f"{steps} steps: m {off['exp_avg']:.1e} (published {published:.1e}), p {off['param']:.1e}; bound: {bound}")
    assert published / 1.5 < off["exp_avg"] < published * 1.5
    assert all(off[name] < getattr(bound, name) for name in NAMES)


def test_not_a_number_passes_a_naive_gate_and_not_ours() -> None:
    run = trace(noise(COUNT, WARM))
    run.grads[WARM][7] = torch.nan
    share = new_share(run, WARM)
    assert not bool((share > 0.9).any()) and not bool((share <= 0.9).all())  # the naive gate, and how to write it
    state = run.state(WARM)
    bound = RelativeBound.over([(state, roll_back(state, log_of(run), WARM - 1))])
    with pytest.raises(DrainError, match="exp_avg nan"):
        bound.check(TOLERANCE)


@pytest.mark.parametrize("start", [2, 4, 8, 16])
def test_cold_start_is_refused(start: int) -> None:
    """Without the refusal and without the clamp, second moments become negative and parameters no numbers."""
    run = trace(noise(100_000, start), weight_decay=0.0)
    state = run.state(start)
    for version in range(start, 1, -1):
        backward(state, run.grads[version], run.hypers[version])
    with pytest.raises(DrainError, match="first step cannot be undone"):
        backward(state, run.grads[1], run.hypers[1])

    p, m, v = run.state(start).tensors().values()
    for t in range(start, 0, -1):
        hyper, grad = run.hypers[t], run.grads[t]
        p = p + hyper.step_size * m / (v.sqrt() / hyper.correction + hyper.eps)
        m, v = (m - (1 - BETAS[0]) * grad) / BETAS[0], (v - (1 - BETAS[1]) * grad.square()) / BETAS[1]
    negative, lost = (v < 0).float().mean().item(), p.isnan().float().mean().item()
    print(f"from step {start} to 0 unguarded: {negative:.0%} of v negative, {lost:.1e} of p not a number")
    assert negative > 0.2 and (lost > 0 or start == 2)


@pytest.mark.parametrize("kind", ["heavy tails", "embedding"])
def test_a_gate_on_any_element_always_fires_where_gradients_are_uneven(kind: str) -> None:
    """The bound weighs elements by size: heavy tails pass, an embedding's rarely used rows do not, and rightly so."""
    run = trace({"heavy tails": student, "embedding": embedding}[kind](COUNT, WARM + 4), betas=(0.9, 0.95))
    shares = [new_share(run, version) for version in range(WARM + 1, WARM + 5)]
    assert all(bool((share > 0.9).any()) for share in shares)
    often = torch.stack(shares).gt(0.9).float().mean().item()
    state = run.state(WARM + 4)
    bound = RelativeBound.over([(state, roll_back(state, log_of(run), WARM))])
    off = errors(state, run.states[WARM])
    print(
        f"{kind}: a > 0.9 for {often:.1e} of the elements, in every step; p off by {off['param']:.1e}, bound: {bound}"
    )
    assert (bound.param > TOLERANCE) == (kind == "embedding") == (off["param"] > 1e-6)


def test_half_precision_is_refused_because_it_is_lost() -> None:
    grads = [grad.bfloat16() for grad in noise(COUNT, WARM)]
    param = torch.nn.Parameter(torch.zeros(COUNT, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([param], lr=1e-3)
    moments: list[torch.Tensor] = []
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
        moments.append(optimizer.state[param]["exp_avg"].clone())
    half = AdamWState(
        param=param.detach(), exp_avg=moments[-1], exp_avg_sq=optimizer.state[param]["exp_avg_sq"], version=WARM
    )
    hyper = Hyper.from_group(optimizer.param_groups[0], t=WARM)
    with pytest.raises(DrainError, match="bfloat16 has lost too much"):
        backward(half, grads[-1], hyper)
    wide = AdamWState(**{name: tensor.float() for name, tensor in half.tensors().items()}, version=WARM)
    undo(wide, grads[-1], hyper)
    off = ((wide.exp_avg - moments[-2]).norm() / moments[-2].norm()).item()
    print(f"bfloat16 moments, one step back: exp_avg off by {off:.1e}")
    assert 1e-3 < off < 4e-3


@pytest.mark.parametrize("hyper", [{"betas": (0.0, 0.999)}, {"lr": 10.0, "weight_decay": 0.1}])
def test_a_step_without_inverse_is_refused(hyper: dict[str, object]) -> None:
    run = trace(noise(8, 3))
    with pytest.raises(DrainError, match="residuals"):
        check_invertible(run.state(3), replace(run.hypers[3], **hyper))


def test_weight_decay_is_undone_with_the_steps_own_learning_rate() -> None:
    run = trace(noise(COUNT, WARM + 8), lr=lambda version: 1e-3 * (1 + version % 7), weight_decay=0.1, std=1.0)
    last, off = run.hypers[WARM + 8], {}
    for own in (True, False):
        state = run.state(WARM + 8)
        for version in range(WARM + 8, WARM, -1):
            hyper = run.hypers[version]
            other = replace(hyper, weight_decay=hyper.weight_decay * last.lr / hyper.lr)
            backward(state, run.grads[version], hyper if own else other)
        off[own] = errors(state, run.states[WARM])["param"]
    print(f"p off by {off[True]:.1e}, with the last step's rate by {off[False]:.1e}")
    assert off[True] < 1e-7 and off[False] > 1e-4


@pytest.mark.parametrize("product", [0.0, 1e-4, 1e-2, 0.5])
def test_weight_decay_is_benign_in_the_optimizers_order(product: float) -> None:
    """For lr * weight_decay as anyone sets it; at 0.5 every step back doubles the error."""
    run = trace(noise(COUNT, WARM + 16), lr=1e-3, weight_decay=product / 1e-3)
    state = run.state(WARM + 16)
    roll_back(state, log_of(run), WARM)
    off = errors(state, run.states[WARM])["param"]
    print(f"lr * weight_decay = {product:g}: p off by {off:.1e} after 16 steps")
    assert off < 2e-7 if product < 0.1 else 1e-4 < off < 1e-2


def test_what_was_clipped_is_undone_with_what_the_optimizer_saw() -> None:
    clip = torch.tensor(0.0213).item()
    raw = spiked(COUNT, WARM + 8, WARM + 4, 50.0)
    run = trace([grad * clip if version == WARM + 4 else grad for version, grad in enumerate(raw, 1)])
    off = {}
    for name, used in (("float32", clip), ("bfloat16", torch.tensor(clip).bfloat16().item()), ("raw", 1.0)):
        log = log_of(run) | {WARM + 4: (raw[WARM + 3], replace(run.hypers[WARM + 4], clip=used))}
        state = run.state(WARM + 8)
        roll_back(state, log, WARM)
        off[name] = errors(state, run.states[WARM])
        print(f"coefficient as {name}: m off by {off[name]['exp_avg']:.1e}, p by {off[name]['param']:.1e}")
    assert off["float32"]["exp_avg"] < 1e-6 < 1e-5 < off["bfloat16"]["exp_avg"] < 1e-2 < 1 < off["raw"]["exp_avg"]


def test_more_bits_in_the_inverse_do_not_help() -> None:
    """What a step rounds is lost; float64 through and through is worse, most of all with constants of its own."""
    run = trace(noise(COUNT, WARM + 8))
    ours, wide, own = run.state(WARM + 8), run.state(WARM + 8), run.state(WARM + 8)
    roll_back(ours, log_of(run), WARM)
    for state, rounded in ((wide, True), (own, False)):

        def constant(number: float, rounded: bool = rounded) -> float:
            return torch.tensor(number).item() if rounded else number

        p, m, v = (tensor.double() for tensor in state.tensors().values())
        for version in range(WARM + 8, WARM, -1):
            hyper, grad = run.hypers[version], run.grads[version].double()
            p = (p + constant(hyper.step_size) * m / (v.sqrt() / hyper.correction + hyper.eps)) / constant(hyper.decay)
            m = (m - constant(1 - BETAS[0]) * grad) / (1 - constant(1 - BETAS[0]))
            v = ((v - constant(1 - BETAS[1]) * grad.square()) / constant(BETAS[1])).clamp(min=0)
        state.param, state.exp_avg, state.exp_avg_sq = p, m, v
    rows = {"ours": ours, "float64, float32 constants": wide, "float64": own}
    off = {name: errors(state, run.states[WARM]) for name, state in rows.items()}
    for name, row in off.items():
        print(f"{name}: " + ", ".join(f"{tensor} {error:.1e}" for tensor, error in row.items()))
    assert off["float64"]["exp_avg_sq"] > 3 * off["ours"]["exp_avg_sq"]
    assert off["float64"]["param"] > off["ours"]["param"]
    assert off["float64"]["exp_avg"] > 0.8 * off["ours"]["exp_avg"]  # no better either


def test_a_skipped_step_goes_back() -> None:
    run = trace(noise(COUNT, WARM))
    state = replace(run.state(WARM), version=WARM + 1)
    skipped = replace(run.hypers[WARM], skipped=True)
    bound = roll_back(state, {WARM + 1: (torch.full((COUNT,), torch.nan), skipped)}, WARM)
    assert bits_equal(state, run.state(WARM)) and RelativeBound.over([(state, bound)]) == RelativeBound()


def test_undoing_is_one_ieee_operation_after_the_other() -> None:
    """NumPy has the same bits, which shares no code with torch: so will another device, if no compiler fuses."""
    run = trace(noise(COUNT, WARM), weight_decay=0.1)
    state, hyper, grad = run.state(WARM), run.hypers[WARM], run.grads[WARM].numpy()
    f32, f64 = np.float32, np.float64
    p, m, v = (tensor.clone().numpy() for tensor in state.tensors().values())
    rest1, rest2 = (f32(1 - beta) for beta in hyper.betas)
    denominator = np.sqrt(v) / f32(hyper.correction) + f32(hyper.eps)
    p = (p - m * f32(-hyper.step_size) / denominator) / f32(hyper.decay)
    m = ((m.astype(f64) - grad.astype(f64) * f64(rest1)) / (1 - f64(rest1))).astype(f32)
    v = np.maximum((v.astype(f64) - (grad * rest2).astype(f64) * grad).astype(f32) / f32(hyper.betas[1]), f32(0))
    undo(state, run.grads[WARM], hyper)
    assert all(
        np.array_equal(tensor.numpy(), same) for tensor, same in zip(state.tensors().values(), (p, m, v), strict=True)
    )


def test_bits_and_bound_do_not_depend_on_the_piece() -> None:
    run = trace(noise(300_000, 6))
    whole, piece = run.state(6), slice(131_008, 131_100)  # across the end of a block
    part = whole[piece].clone()
    bound, other = roll_back(whole, log_of(run), 3), roll_back(part, log_of(run, piece), 3)
    assert bits_equal(part, whole[piece])
    assert all(torch.equal(getattr(bound, name)[piece], getattr(other, name)) for name in NAMES)
