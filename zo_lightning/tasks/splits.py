"""Which rows a task takes: LoZO's samples, or the first rows."""

from __future__ import annotations

import numpy as np

from zo_lightning.errors import ConfigError, DataError

SAMPLINGS = ("lozo", "first")


def order(num_rows: int, sampling: str, seed: int) -> list[int]:
    """Row numbers in the order in which they are taken.

    ``lozo`` permutes with NumPy's legacy generator, as the released code does.

    Examples:
        >>> order(4, "first", 0), order(4, "lozo", 0)
        ([0, 1, 2, 3], [2, 3, 1, 0])
    """
    if sampling == "first":
        return list(range(num_rows))
    return [int(number) for number in np.random.RandomState(seed).permutation(num_rows)]


def split_train(taken: list[int], *, num_train: int, num_dev: int, task: str) -> tuple[list[int], list[int]]:
    """Training and dev rows: dev is the end of the first ``num_train + num_dev``, and is served first if rows are few.

    Raises:
        DataError: nothing would be left to train on.

    Examples:
        >>> split_train([5, 3, 1, 4, 0], num_train=2, num_dev=2, task="demo")
        ([5, 3], [1, 4])
    """
    taken = taken[: num_train + num_dev]
    if len(taken) <= num_dev:
        raise DataError(
            f"task {task}: {len(taken)} training rows less `task.num_dev`={num_dev} leave none to train on: "
            "lower `task.num_dev`"
        )
    return taken[:-num_dev], taken[-num_dev:]


def check_choice(key: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse an unknown value of ``task.<key>``.

    Raises:
        ConfigError: with the values that exist.
    """
    if value not in known:
        raise ConfigError(f"`task.{key}` must be {' or '.join(known)}, not {value}")


def check_counts(num_train: int, num_dev: int, num_test: int, seed: int) -> None:
    """Refuse counts below one and seeds that NumPy refuses.

    Raises:
        ConfigError: with the key to change.
    """
    for key, count in (("num_train", num_train), ("num_dev", num_dev), ("num_test", num_test)):
        if count < 1:
            raise ConfigError(f"`task.{key}` must be at least 1, not {count}")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"`task.sampling_seed` must lie in 0 ... 2**32 - 1, not {seed}")
