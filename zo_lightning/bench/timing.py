"""Measuring side by side: every round times each case once, so that what slows the machine slows all of them.

Ratios are of medians over rounds; their intervals come from resampling whole rounds, which keeps the pairs together.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

_DRAWS = 2000  # bootstrap samples
# Counted before an engine starts, which binds this thread to one of them.
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Case = Callable[[int], object]  # is told the round


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f}-{self.high:.3f})"

    def facts(self, name: str) -> dict[str, float | list[float]]:
        """The ratio under a name and its interval beside it.

        Examples:
            >>> Ratio(1.5, 1.4, 1.6).facts("a_over_b")
            {'a_over_b': 1.5, 'a_over_b_interval': [1.4, 1.6]}
        """
        return {name: self.value, f"{name}_interval": [self.low, self.high]}


def ratio_of_medians(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Median over median of paired rounds, with a percentile bootstrap over the rounds.

    Examples:
        >>> ratio_of_medians([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
        Ratio(value=2.0, low=2.0, high=2.0)
        >>> ratio = ratio_of_medians([1.0, 1.1, 1.2, 5.0], [1.0, 1.0, 1.0, 1.0])
        >>> ratio.low <= ratio.value <= ratio.high
        True
    """
    rounds, draw = list(zip(over, under, strict=True)), random.Random(0)
    samples = sorted(_ratio(draw.choices(rounds, k=len(rounds))) for _ in range(_DRAWS))
    return Ratio(_ratio(rounds), samples[int(0.025 * _DRAWS)], samples[int(0.975 * _DRAWS)])


def ratio_of_unpaired(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Median over median of rounds that were measured one side after the other: each side is resampled by itself.

    Examples:
        >>> ratio_of_unpaired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
        Ratio(value=2.0, low=0.6666666666666666, high=6.0)
    """
    draw = random.Random(0)
    samples = sorted(
        median(draw.choices(over, k=len(over))) / median(draw.choices(under, k=len(under))) for _ in range(_DRAWS)
    )
    return Ratio(median(over) / median(under), samples[int(0.025 * _DRAWS)], samples[int(0.975 * _DRAWS)])


def _ratio(rounds: Sequence[tuple[float, float]]) -> float:
    return median(a for a, _ in rounds) / median(b for _, b in rounds)


def balanced_order(number: int, count: int) -> list[int]:
    """The order of ``count`` cases in a round: a Williams design, in which each case follows every other equally often.

    Examples:
        >>> [balanced_order(number, 4) for number in range(4)]
        [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]
        >>> pairs = [(r[i], r[i + 1]) for r in (balanced_order(n, 5) for n in range(10)) for i in range(4)]
        >>> {pairs.count((a, b)) for a in range(5) for b in range(5) if a != b}
        {2}
    """
    zigzag = [0, *((i + 1) // 2 if i % 2 else count - i // 2 for i in range(1, count))]
    order = [(case + number) % count for case in zigzag]
    return order[::-1] if count % 2 and number // count % 2 else order


def measure(cases: Mapping[str, Case], *, rounds: int, warm_up: int) -> dict[str, list[float]]:
    """Seconds of every case in every round after the warm-up, with a progress bar on the standard error.

    Args:
        cases: by name; each is called once a round with the number of the round.
        rounds: rounds that count.
        warm_up: rounds before them that do not.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    names = list(cases)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    described = TextColumn("{task.description}")
    console = Console(stderr=True)
    with Progress(*columns, described, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=(warm_up + rounds) * len(names))
        for number in range(warm_up + rounds):
            for index in balanced_order(number, len(names)):
                name = names[index]
                progress.update(bar, description=name if number >= warm_up else f"{name} (warm-up)")
                taken = seconds_of(cases[name], number)
                progress.advance(bar)
                if number >= warm_up:
                    seconds[name].append(taken)
    return seconds


def seconds_of(case: Case, number: int) -> float:
    """Wall time of one call, until the device has finished."""
    start = time.perf_counter()
    case(number)
    _finish()
    return time.perf_counter() - start


def _finish() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def use_all_cores() -> None:
    """Give torch every core of this process, whatever an engine has set since.

    ``torch.set_num_threads`` itself is a function that does nothing once a vLLM engine has run in this process.
    """
    import torch

    torch._C.set_num_threads(_CORES)
