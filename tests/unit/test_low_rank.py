"""The one-pass loop against plain products, at odd sizes and in every thread count."""

from __future__ import annotations

import pytest
import torch

from zo_lightning.kernels import low_rank, team
from zo_lightning.kernels.low_rank import MAX_COLUMNS, Part, add_low_rank, table

pytestmark = pytest.mark.skipif(team.libgomp() is None, reason="torch has no GNU OpenMP here: products only")


@pytest.mark.parametrize("columns", [1, 2, 3, 5, MAX_COLUMNS, MAX_COLUMNS + 1])
@pytest.mark.parametrize("tokens", [1, 2, 7, 65])
def test_both_ways_agree(columns: int, tokens: int) -> None:
    generator = torch.Generator().manual_seed(columns * 100 + tokens)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    parts = [Part(3, 2, 0, 5), Part(14, 7, 5, 1), Part(20, 8, 6, 33)]  # inputs 11 wide, gaps between them
    runs = [(2, 0, tokens // 3), (0, tokens // 3, tokens // 2), (1, tokens - tokens // 3, tokens)]
    inputs, right, left = draw(tokens, 11), draw(columns, 40), draw(3, columns, 50)
    output = draw(tokens, 39)
    expected = output.double()
    for adapter, start, end in runs:
        for i, o, row, rows in parts:
            hidden = inputs[start:end].double() @ right[:, i : i + 11].double().T
            expected[start:end, row : row + rows] += hidden @ left[adapter, :, o : o + rows].double()
    for add in (add_low_rank, low_rank._by_products):
        found = output.clone()
        add(found, inputs, right, left, table(parts), table(runs))
        assert torch.allclose(found.double(), expected, atol=1e-4)


def test_the_loop_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few columns of contiguous float32 never reach the library; anything else does."""
    calls = []
    monkeypatch.setattr(low_rank, "_by_products", lambda *args: calls.append("products"))
    right, left, part = torch.ones(2, 4), torch.ones(1, 2, 3), table([Part(0, 0, 0, 3)])
    runs = table([(0, 0, 5)])
    add_low_rank(torch.zeros(5, 3), torch.ones(5, 4), right, left, part, runs)
    assert calls == []
    add_low_rank(torch.zeros(5, 3, dtype=torch.bfloat16), torch.ones(5, 4), right, left, part, runs)
    add_low_rank(torch.zeros(3, 5).T, torch.ones(5, 4), right, left, part, runs)
    assert calls == ["products"] * 2
