"""16-bit engines against single precision: gradients of the same sign and size, step after step."""

from __future__ import annotations

import pytest
import torch

from tests.backends import Opened, Row, key_of, on_rows, oracle_of


@on_rows(
    Row("vllm", dtype="bfloat16"),
    Row("packed", dtype="bfloat16"),
    Row("packed", "tiny-opt", dtype="bfloat16", trainable="all"),
)
def test_half_precision_is_close_to_single(subject: Opened) -> None:
    oracle = oracle_of(subject.row).reset()
    eps, slopes = 1e-2, []
    for step in range(8):
        key = key_of(step)
        pairs = [[opened.ask((key, a)).value for a in (eps, -eps)] for opened in (subject, oracle)]
        slopes.append([(plus - minus) / (2 * eps) for plus, minus in pairs])
        assert subject.ask().value == pytest.approx(oracle.ask().value, abs=0.02)
        for opened in (subject, oracle):
            opened.train(1)
    assert float(torch.corrcoef(torch.tensor(slopes).T)[0, 1]) > 0.99
