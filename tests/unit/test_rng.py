"""The only source of randomness: published answers, golden bits, and statistics with honest bounds.

Seeds are fixed, so a statistical test either always passes or always fails. The bounds are 4.5 standard errors: a
sound generator misses one of them about once in 150,000 tries.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from zo_lightning.core import rng
from zo_lightning.core.rng import ROLE_LEFT, ROLE_RIGHT, ROLE_SHUFFLE
from zo_lightning.core.types import DirectionKey, Layout, MatrixSpec
from zo_lightning.directions import LowRank

SIGMAS = 4.5
MANY = 1 << 20
SOME = 1 << 16


def draw(*, seed: int = 1, role: int = ROLE_LEFT, step: int = 0, index: int = 0, counts=(SOME,)) -> torch.Tensor:
    return rng.normals(seed, role, step=step, index=index, counts=counts)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


# --- Philox


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # Random123, kat_vectors: philox4x32 10
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),  # the digits of pi
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_published_answers(counter, key, words) -> None:
    tensors = tuple(torch.tensor([word], dtype=torch.int64) for word in counter)
    assert tuple(rng.philox(tensors, key)[0].tolist()) == words  # type: ignore[arg-type]


def philox_words(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Philox 4x32-10 on Python's integers, straight from its paper."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * x0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * x2, 1 << 32)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return [x0, x1, x2, x3]


def test_every_element_has_its_own_address() -> None:
    """Element e of matrix m is half e % 8 of block e // 8: a loop over Python integers finds the same numbers."""
    counts, seed, step, index = (21, 8, 1, 13), 0xDEADBEEF, 70_000, 3
    table = rng.normal_table(torch.device("cpu"))
    expected = []
    for matrix, count in enumerate(counts):
        for element in range(count):
            words = philox_words((element // 8, matrix, index, step), (seed, ROLE_RIGHT))
            word = words[element % 8 // 2]
            expected.append(float(table[word >> 16 if element % 2 else word & 0xFFFF]))
    drawn = draw(seed=seed, role=ROLE_RIGHT, step=step, index=index, counts=counts)
    assert drawn.tolist() == expected


# --- the table


def test_table_is_symmetric_with_unit_variance_and_normal_tails() -> None:
    table = rng.normal_table(torch.device("cpu")).double()
    assert torch.equal(table, -table.flip(0))
    assert bool((table.diff() > 0).all())
    assert float(table.square().mean()) == pytest.approx(1.0, abs=1e-7)
    assert float(table.pow(4).mean()) == pytest.approx(2.99, abs=0.01)  # a normal's is 3
    assert float(table.max()) == pytest.approx(4.32, abs=0.01)
    for z in (1.0, 2.0, 3.0, 4.0):
        beyond = float((table > z).double().mean())
        assert beyond == pytest.approx(math.erfc(z / math.sqrt(2)) / 2, abs=1.0 / len(table) + 1e-4 * beyond)


# --- distribution of the draws


@pytest.fixture(scope="module")
def many() -> torch.Tensor:
    return draw(counts=(MANY,)).double()


def test_moments_are_a_standard_normals(many: torch.Tensor) -> None:
    table = rng.normal_table(torch.device("cpu")).double()
    for power, name in enumerate(("mean", "variance", "skewness", "kurtosis"), start=1):
        expected = float(table.pow(power).mean())
        error = math.sqrt(float(table.pow(2 * power).mean()) - expected**2) / math.sqrt(MANY)
        assert float(many.pow(power).mean()) == pytest.approx(expected, abs=SIGMAS * error), name


@pytest.mark.parametrize("z", [1.0, 2.0, 3.0, 4.0])
def test_tails_hold_as_many_draws_as_a_normals(many: torch.Tensor, z: float) -> None:
    expected = MANY * math.erfc(z / math.sqrt(2))
    assert int((many.abs() > z).sum()) == pytest.approx(expected, abs=SIGMAS * math.sqrt(expected))


def test_all_values_of_the_table_are_drawn_evenly(many: torch.Tensor) -> None:
    """Chi-square over the table's 65,536 values, 16 draws expected of each."""
    place = torch.searchsorted(rng.normal_table(torch.device("cpu")), many.float())
    observed = place.bincount(minlength=SOME).double()
    expected = MANY / SOME
    statistic = float((observed - expected).square().sum() / expected)
    assert statistic == pytest.approx(SOME - 1, abs=SIGMAS * math.sqrt(2 * (SOME - 1)))


# --- independence


def assert_uncorrelated(rows: list[torch.Tensor]) -> None:
    """Pairwise correlations of the draws and of their squares stay within the bound, Bonferroni included."""
    pairs = len(rows) * (len(rows) - 1) // 2
    bound = math.sqrt(SIGMAS**2 + 2 * math.log(pairs)) / math.sqrt(len(rows[0]))
    for stacked in (torch.stack(rows), torch.stack(rows).square()):
        correlation = torch.corrcoef(stacked.double())
        worst = float((correlation - torch.eye(len(rows))).abs().max())
        assert worst < bound, (worst, bound)


def test_steps_are_independent() -> None:
    assert_uncorrelated([draw(step=step) for step in (*range(14), 1 << 16, 1 << 31)])


def test_indices_are_independent() -> None:
    assert_uncorrelated([draw(index=index) for index in (*range(14), 1 << 15, (1 << 15) + 1)])


def test_roles_and_seeds_are_independent() -> None:
    streams = [(seed, role) for seed in (0, 1, 2, 42, 0xFFFFFFFF) for role in (ROLE_LEFT, ROLE_RIGHT, ROLE_SHUFFLE)]
    assert_uncorrelated([draw(seed=seed, role=role) for seed, role in streams])


def test_matrices_are_independent() -> None:
    assert_uncorrelated(list(draw(counts=(SOME,) * 16).view(16, SOME)))


def test_rows_and_columns_of_a_matrix_are_independent() -> None:
    """Neighbours in a stream: rows of all ranks, and the eight halves of a block, which one counter makes."""
    stream = draw(counts=(8 * SOME,))
    assert_uncorrelated(list(stream.view(SOME, 8).T))
    assert_uncorrelated([stream[lag : lag + SOME] for lag in range(17)])


def test_counter_words_do_not_alias() -> None:
    """Step 1 index 0 is not step 0 index 1, and so on: no two addresses share a draw."""
    addresses = [(seed, role, step, index) for seed in (0, 1) for role in (0, 1) for step in (0, 1) for index in (0, 1)]
    streams = [draw(seed=s, role=r, step=t, index=i, counts=(64, 64)) for s, r, t, i in addresses]
    halves = [digest(half) for stream in streams for half in stream.view(2, 64)]
    assert len(set(halves)) == len(halves)


# --- addresses: shards, threads, golden bits


def test_the_first_rows_of_a_matrix_are_a_prefix_of_its_draws() -> None:
    whole = draw(counts=(1000,))
    for count in (1, 7, 8, 9, 999):
        assert torch.equal(draw(counts=(count,)), whole[:count])


def test_a_matrix_does_not_depend_on_the_size_of_its_neighbours() -> None:
    assert torch.equal(draw(counts=(3, 40, 5))[3:43], draw(counts=(1000, 40))[1000:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_shard_of_the_rows_draws_a_slice_of_the_whole_factor(side: str) -> None:
    """What a tensor-parallel rank with the first 5 of 12 rows (or columns) makes is what one process makes."""

    def factor(size: int) -> torch.Tensor:
        matrices = tuple(MatrixSpec(name=name, rows=size, cols=size) for name in "ab")
        layout = Layout(model="", matrices=matrices, num_parameters=0)
        key = DirectionKey(seed=3, step=11, stage=2)
        return getattr(LowRank(rank=3, refresh_every=5), side)(key, layout, torch.device("cpu"))

    whole, shard = factor(12).view(2, 12, 3), factor(5).view(2, 5, 3)
    assert torch.equal(shard, whole[:, :5])


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    drawn = []
    try:
        for threads in (1, 2):
            torch._C.set_num_threads(threads)  # an inline engine, if one ran before, has disabled the public one
            assert torch.get_num_threads() == threads
            drawn.append(draw(step=5, counts=(100_003, 4 * SOME)))
    finally:
        torch._C.set_num_threads(before)
    assert torch.equal(*drawn)


@pytest.mark.parametrize(
    ("seed", "role", "step", "index", "counts", "golden"),
    [
        (0, ROLE_LEFT, 0, 0, (1000,), "d67981e9178d876f"),
        (42, ROLE_LEFT, 59, 0, (256, 17, 300), "4a59814669a01b1e"),
        (42, ROLE_RIGHT, 5, 0, (256, 17, 300), "6f4d75003ece24b3"),
        (0xFFFFFFFF, ROLE_RIGHT, 1 << 31, 1 << 15, (99, 1), "fcb808b316a19aac"),
    ],
)
def test_draws_have_their_golden_bits(seed, role, step, index, counts, golden: str) -> None:
    assert digest(draw(seed=seed, role=role, step=step, index=index, counts=counts)) == golden


# --- permutations


def test_permutation_has_its_golden_order() -> None:
    assert rng.permutation(42, 12, epoch=3) == [1, 11, 2, 5, 10, 0, 6, 8, 3, 4, 9, 7]


def test_permutations_are_permutations_and_put_every_element_everywhere() -> None:
    size, epochs = 8, 1000
    places: Iterator[int] = (rng.permutation(7, size, epoch=epoch).index(0) for epoch in range(epochs))
    counts = Counter(places)
    statistic = sum((counts[place] - epochs / size) ** 2 for place in range(size)) / (epochs / size)
    assert statistic < (size - 1) + SIGMAS * math.sqrt(2 * (size - 1))
    assert sorted(rng.permutation(7, 1000, epoch=0)) == list(range(1000))
