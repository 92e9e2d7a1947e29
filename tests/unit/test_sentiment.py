"""The built-in task keeps its promises: balanced, disjoint, no telling keyword, the same for ever."""

from __future__ import annotations

import hashlib
import re
from itertools import islice
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from zo_lightning.errors import ConfigError
from zo_lightning.tasks import SentimentTask
from zo_lightning.tasks.sentiment import OPTIONS, reviews

CONF = Path(__file__).parents[2] / "zo_lightning" / "conf" / "task" / "sentiment.yaml"
SIZES = (1000, 200, 400)


def parts(seed: int = 0) -> list[list[tuple[str, int]]]:
    """Training, dev and test reviews of the default sizes."""
    drawn = iter(reviews(sum(SIZES), seed=seed))
    return [list(islice(drawn, size)) for size in SIZES]


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z'-]+", text.lower()))


def keyword_accuracy(rows: list[tuple[str, int]]) -> tuple[float, str]:
    """The best accuracy of "this word occurs" as a classifier, and the word."""
    present = {label: [words(text) for text, truth in rows if truth == label] for label in (0, 1)}
    vocabulary = set().union(*present[0], *present[1])

    def accuracy(word: str) -> float:
        right = sum(word in found for found in present[1]) + sum(word not in found for found in present[0])
        return max(right, len(rows) - right) / len(rows)

    return max((accuracy(word), word) for word in vocabulary)


def test_every_part_is_balanced() -> None:
    for rows in parts():
        assert sum(label for _, label in rows) == len(rows) // 2


def test_parts_are_disjoint_as_texts() -> None:
    texts = [text for rows in parts() for text, _ in rows]
    assert len(set(texts)) == len(texts) == sum(SIZES)


def test_no_single_word_tells_the_label() -> None:
    for rows in parts():
        accuracy, word = keyword_accuracy(rows)
        assert accuracy <= 0.60, f"the word {word!r} alone reaches {accuracy:.3f}"


def test_the_keyword_check_finds_a_telling_word() -> None:
    rows = [("a fine film", 1), ("a fine book", 1), ("a poor film", 0), ("a poor book", 0)]
    assert keyword_accuracy(rows)[0] == 1.0


def test_reviews_are_single_sentences_of_8_to_22_words() -> None:
    for text, _ in reviews(3000, seed=5):
        assert 8 <= len(text.split()) <= 22
        assert re.fullmatch(r"[A-Z][A-Za-z ,;'-]+\.", text), text
        assert not words(text) & {"great", "terrible"}  # the options


def test_the_same_for_ever() -> None:
    text = "".join(f"{label}\t{text}\n" for text, label in reviews(sum(SIZES), seed=0))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "9c48018eeef52c06"


def test_every_seed_gives_other_reviews() -> None:
    first, second = ({text for text, _ in reviews(1000, seed=seed)} for seed in (0, 1))
    assert len(first & second) < 200


def test_load_tokenises_the_parts_in_order() -> None:
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([text for text, _ in reviews(50, seed=1)], vocab_size=300)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer)
    data = SentimentTask(num_train=6, num_dev=4, num_test=2).texts().encode(tokenizer, max_length=500)
    examples = [*data.train, *data.dev, *data.test]
    assert [len(part) for part in (data.train, data.dev, data.test)] == [6, 4, 2]
    assert [tokenizer.decode(example.prompt) for example in examples] == [f"{t} It was" for t, _ in reviews(12, seed=0)]
    assert [example.label for example in examples] == [0, 1] * 6
    assert tuple(tokenizer.decode(option) for option in examples[0].options) == OPTIONS
    assert (data.num_labels, data.num_truncated) == (2, 0)


def test_the_shipped_configuration_has_the_default_sizes() -> None:
    fields = OmegaConf.load(CONF)
    assert (fields.num_train, fields.num_dev, fields.num_test) == SIZES
    task = SentimentTask()
    assert (task.num_train, task.num_dev, task.num_test) == SIZES


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"`task.num_test` must be at least 1"):
        SentimentTask(num_test=0)
    with pytest.raises(ConfigError, match=r"may sum to 20000, not 30600"):
        SentimentTask(num_train=30_000)
