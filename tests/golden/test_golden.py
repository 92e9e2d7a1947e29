"""Thirty steps of LoZO against the golden file: draws and arithmetic to the bit, forward passes to their rounding."""

from __future__ import annotations

import pytest

from tests.backends import EPS, one_thread, prepared
from tests.golden.lozo import FILE, TITLE, bank_digest, draws_digest, measure, read

# Other instruction sets sum in another order: measured, a loss moves by up to 4e-7 and a slope by 5e-4.
LOSS_ROUNDING = 2e-6


def test_the_file_is_of_these_settings() -> None:
    assert FILE.read_text().startswith(TITLE)


def test_every_draw_has_its_golden_bits() -> None:
    assert draws_digest(prepared("tiny-llama").layout) == read().draws


def test_replaying_the_golden_slopes_gives_the_golden_factors_bit_by_bit() -> None:
    golden = read()
    assert bank_digest(prepared("tiny-llama").layout, [slope for _, slope in golden.steps]) == golden.bank


def test_every_step_measures_its_golden_loss_and_slope() -> None:
    """Each step starts from the golden factors, so that rounding cannot add up."""
    golden = read()
    with one_thread():
        measured = measure([slope for _, slope in golden.steps])
    for (loss, slope), (golden_loss, golden_slope) in zip(measured, golden.steps, strict=True):
        assert loss == pytest.approx(golden_loss, rel=LOSS_ROUNDING)
        assert slope == pytest.approx(golden_slope, abs=LOSS_ROUNDING / EPS)
