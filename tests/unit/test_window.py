"""Whose gradients a drain needs."""

from __future__ import annotations

import pytest

from zo_lightning.drain.window import Target, Window

TARGETS: tuple[Target, ...] = ("newest", "median", "oldest")


@pytest.mark.parametrize(
    ("shards", "ends", "median", "ratio"),
    [(8, 3.5, 2.0, 0.571), (16, 7.5, 4.0, 0.533), (64, 31.5, 16.0, 0.508), (4096, 2047.5, 1024.0, 0.5)],
)
def test_traffic(shards: int, ends: float, median: float, ratio: float) -> None:
    newest, middle, oldest = (Window(shards=shards, target=target).traffic for target in TARGETS)
    print(f"S={shards}: newest {newest}, median {middle}, oldest {oldest}; median over newest {middle / newest:.4f}")
    assert (newest, middle, oldest) == (ends, median, ends)
    assert middle / newest == shards / (2 * (shards - 1)) and round(middle / newest, 3) == ratio


@pytest.mark.parametrize("shards", range(1, 20))
def test_median_is_a_quarter_of_the_square(shards: int) -> None:
    assert Window(shards=shards, target="median").slices == shards * shards // 4


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shards", [1, 2, 7, 8])
def test_what_is_logged_is_what_is_replayed(shards: int, target: Target) -> None:
    window = Window(shards=shards, first=100, target=target)
    needed = {(shard, step) for shard in range(shards) for step in window.steps(shard)}
    assert {(shard, step) for step in range(90, 120) for shard in window.shards_of(step)} == needed
    for shard in range(shards):
        version = window.captured(shard)
        for step in window.steps(shard):
            version = step if step > version else step - 1
        assert version == window.version


def test_staleness_is_the_price_of_less_traffic() -> None:
    assert [Window(shards=30, target=target).staleness for target in TARGETS] == [0, 14, 29]
