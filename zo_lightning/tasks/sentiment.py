"""The built-in `sentiment` task: short reviews that the project composes itself, so that it needs no download.

Every text is drawn from a seed. About half are plain opinions; the rest turn: a concession outweighed by a verdict,
an expectation that was not met, a fault or merit denied.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_lightning.errors import ConfigError
from zo_lightning.tasks import lexicon
from zo_lightning.tasks.encoding import TRUNCATIONS, PromptText, TaskTexts
from zo_lightning.tasks.lexicon import Domain
from zo_lightning.tasks.splits import check_choice, check_counts

if TYPE_CHECKING:
    pass

OPTIONS = (" terrible", " great")  # of label 0 and label 1
MAX_REVIEWS = 20_000  # well below the number of distinct texts
_FORMS = ("plain", "contrast", "turn", "denial")
_WEIGHTS = (54, 30, 10, 6)
_NUM_WORDS = range(8, 23)


def reviews(count: int, *, seed: int) -> list[tuple[str, int]]:
    """Distinct review texts with their labels, which alternate: every even-sized run of them is balanced.

    Examples:
        >>> reviews(2, seed=0) == reviews(2, seed=0) != reviews(2, seed=1)
        True
    """
    rng = random.Random(seed)
    found: dict[str, int] = {}
    while len(found) < count:
        label = len(found) % 2
        text = _Writer(rng, label).review()
        if text not in found and len(text.split()) in _NUM_WORDS:
            found[text] = label
    return list(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class SentimentTask:
    """Is a review favourable? Training, dev and test texts are disjoint, and balanced where their number is even.

    Args:
        name: names the task in messages.
        num_train: training reviews.
        num_dev: reviews to choose settings on.
        num_test: reviews to report on.
        sampling_seed: every seed gives other reviews.
        truncate: what becomes of a text longer than the context: ``error``, or ``left`` cuts its beginning.
    """

    name: str = "sentiment"
    num_train: int = 1000
    num_dev: int = 200
    num_test: int = 400
    sampling_seed: int = 0
    truncate: str = "error"

    def __post_init__(self) -> None:
        check_choice("truncate", self.truncate, TRUNCATIONS)
        check_counts(self.num_train, self.num_dev, self.num_test, self.sampling_seed)
        if self._count > MAX_REVIEWS:
            raise ConfigError(f"`task.num_train`, `num_dev` and `num_test` may sum to {MAX_REVIEWS}, not {self._count}")

    @property
    def _count(self) -> int:
        return self.num_train + self.num_dev + self.num_test

    def texts(self) -> TaskTexts:
        """Compose the reviews."""
        prompts = [
            PromptText(f"{text} It was", OPTIONS, (label,), f"task {self.name}, review {number}")
            for number, (text, label) in enumerate(reviews(self._count, seed=self.sampling_seed))
        ]
        return TaskTexts(
            prompts=prompts,
            num_train=self.num_train,
            num_dev=self.num_dev,
            truncate=self.truncate,
        )


class _Writer:
    """Composes one review of a thing that it picks."""

    def __init__(self, rng: random.Random, label: int) -> None:
        self._rng = rng
        self._own, self._other = (0, 1) if label == 1 else (1, 0)  # places in a pair
        self._domain: Domain = rng.choice(lexicon.DOMAINS)
        self._noun = rng.choice(self._domain.nouns)

    def review(self) -> str:
        """One sentence."""
        form = self._rng.choices(_FORMS, weights=_WEIGHTS)[0]
        sentence: str = getattr(self, f"_{form}")()
        return f"{sentence[0].upper()}{sentence[1:]}."

    def _plain(self) -> str:
        aspect = self._rng.choice(self._domain.aspects)[self._own]
        return self._rng.choice(
            (
                f"{aspect}, and {self._verdict()}",
                f"{self._visit()}, and {aspect}",
                f"{self._visit()}, and {self._verdict('it')}",
                f"{self._visit()}, and {self._verdict('it')}",
            )
        )

    def _contrast(self) -> str:
        concession = self._rng.choice(self._domain.aspects)[self._other]
        return self._rng.choice(
            (
                f"{concession}, but {self._verdict()}",
                f"although {concession}, {self._verdict()}",
                f"{self._visit()}; {concession}, but {self._verdict('it')}",
                f"{self._visit()}, and although {concession}, {self._verdict('it')}",
            )
        )

    def _turn(self) -> str:
        hope = self._fill(self._rng.choice(lexicon.HOPES)[self._other])
        return f"{hope}, {self._rng.choice(('but', 'yet'))} {self._verdict('it')}"

    def _denial(self) -> str:
        word = self._rng.choice((lexicon.FAULTS, lexicon.MERITS)[self._own])
        denial = self._fill(self._rng.choice(lexicon.DENIALS), word=word)
        return f"{self._rng.choice(self._domain.aspects)[self._own]}, and {denial}"

    def _visit(self) -> str:
        return f"{self._domain.visit} this {self._noun} {self._rng.choice(lexicon.OCCASIONS)}"

    def _verdict(self, it: str | None = None) -> str:
        return self._fill(self._rng.choice(lexicon.VERDICTS)[self._own], it=it)

    def _fill(self, phrase: str, *, it: str | None = None, word: str = "") -> str:
        it = it or f"this {self._noun}"
        time = self._domain.time.format(it=it)
        return phrase.format(it=it, time=time, again=self._domain.again, noun=self._noun, word=word)
