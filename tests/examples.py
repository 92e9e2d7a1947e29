"""Labelled sentences for tests, made here: reviews that end in ``It was``, as SST-2's template has them."""

from __future__ import annotations

import functools
import random
from pathlib import Path

from zo_lightning.core.types import Example
from zo_lightning.models import load_tokenizer

# In every tokenizer here: options of one token each, of two each, mixed, and one that is a prefix of another.
OPTIONS = (
    (" terrible", " great"),
    (" a bad", " the good"),
    (" bad", " the good"),
    (" good", " good and great"),
    (" the bad", " the good", " a great"),
)
_SUBJECTS = ("film", "plot", "cast", "story", "score", "ending")
_VERDICTS = (("dull", "slow", "hollow", "loud"), ("warm", "sharp", "funny", "bold"))


def sentences(count: int, *, seed: int = 0) -> list[tuple[str, int]]:
    """Texts with their labels.

    >>> sentences(1)[0][0].endswith("It was")
    True
    """
    drawn = random.Random(seed)
    texts = []
    for _ in range(count):
        label = drawn.randrange(2)
        words = drawn.sample(_VERDICTS[label], drawn.randrange(1, 4))
        texts.append((f"The {drawn.choice(_SUBJECTS)} is {' and '.join(words)}. It was", label))
    return texts


@functools.cache
def mixed_examples(folder: Path, count: int = 10, *, seed: int = 0) -> tuple[Example, ...]:
    """Examples whose options take every form of ``OPTIONS`` in turn."""
    tokenizer = load_tokenizer(folder)

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    return tuple(
        Example(prompt=ids(text), options=tuple(ids(option) for option in OPTIONS[i % len(OPTIONS)]), label=label)
        for i, (text, label) in enumerate(sentences(count, seed=seed))
    )
