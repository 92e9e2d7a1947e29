"""Options that differ from row to row, and what is said of rows that cannot have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_tasks import load, make, one_row, refusal, shipped, text_of, write
from zo_lightning.core.types import Example, Observation
from zo_lightning.errors import ConfigError
from zo_lightning.modules.metrics import ScoreMetrics
from zo_lightning.tasks import TaskData, TextTask

WEIGHTS = {
    "premise": "The rope broke",
    "choice1": "It was old.",
    "choice2": "I pulled.",
    "question": "cause",
    "label": 1,
}
SHIP = {
    "passage": "The Vega left Oslo.\n@highlight\nOslo waved",
    "query": "Nobody in @placeholder saw the ship return.",
    "entities": ["Vega", "Oslo", "the Vega"],
    "answers": ["the Vega", "Oslo"],
}


def quiz(folder: Path, *rows: dict[str, Any], **changes: Any) -> TextTask:
    """The rows as training file and as test file, each row with the candidates in its field ``names``."""
    for part in ("train", "validation"):
        write(folder / f"films_{part}.jsonl", list(rows))
    given = {"template": "{{ text }} is", "verbalisers": None, "candidates": "names", "num_train": 99, "num_dev": 1}
    return make(folder, **given | {"num_test": 99} | changes)


def row(*names: Any, label: Any = 0) -> dict[str, Any]:
    return {"text": "This", "names": list(names), "label": label}


def options(data: TaskData) -> list[list[str]]:
    return [[text_of(option) for option in example.options] for example in data.test]


# The tasks that are shipped


def test_copa_word_for_word(tmp_path: Path) -> None:
    example = one_row(tmp_path, "copa", WEIGHTS)
    assert text_of(example.prompt) == "The rope broke because"
    assert [text_of(option) for option in example.options] == [" it was old.", " I pulled."]
    assert (example.label, example.also_right) == (1, ())
    example = one_row(tmp_path, "copa", WEIGHTS | {"premise": "It rained.", "question": "effect", "label": 0})
    assert text_of(example.prompt + example.options[0]) == "It rained so it was old."


def test_record_word_for_word(tmp_path: Path) -> None:
    example = one_row(tmp_path, "record", SHIP)
    assert text_of(example.prompt) == "The Vega left Oslo.\n- Oslo waved\n-"
    assert [text_of(option) for option in example.options] == [
        f" Nobody in {name} saw the ship return." for name in SHIP["entities"]
    ]
    assert (example.label, example.also_right) == (2, (1,))


def test_both_name_a_hub_source() -> None:
    assert [shipped(name).hub_path for name in ("copa", "record")] == ["aps/super_glue"] * 2


# Rows


def test_rows_may_have_different_numbers_of_options(tmp_path: Path) -> None:
    data = load(quiz(tmp_path, row("a", "b"), row("c", "d", "e", label=2), row("f", "g")))
    assert options(data) == [[" a", " b"], [" c", " d", " e"], [" f", " g"]]
    assert [example.label for example in data.test] == [0, 2, 0]
    assert data.num_labels == 3


def test_many_rows_of_different_sizes_keep_their_own_options(tmp_path: Path) -> None:
    """More rows than are tokenised at once."""
    sizes = [2 + i % 5 for i in range(600)]
    rows = [row(*(f"{i} {k}" for k in range(size)), label=size - 1) for i, size in enumerate(sizes)]
    data = load(quiz(tmp_path, *rows, num_test=600))
    assert options(data) == [[f" {i} {k}" for k in range(size)] for i, size in enumerate(sizes)]


def test_a_label_is_a_number_or_a_text_or_a_list(tmp_path: Path) -> None:
    labels = (1, "b", ["b"], [1, 0], ["b", "a", "b"], [1, "a"])
    data = load(quiz(tmp_path, *(row("a", "b", label=label) for label in labels)))
    assert [(e.label, e.also_right) for e in data.test] == [(1, ())] * 3 + [(1, (0,))] * 3


def test_a_number_is_a_place_even_among_numbers(tmp_path: Path) -> None:
    data = load(quiz(tmp_path, *[row(7, 1, label=0)] * 2))
    assert options(data)[0] == [" 7", " 1"] and data.test[0].label == 0


def test_the_option_template_knows_the_row(tmp_path: Path) -> None:
    task = quiz(tmp_path, *[row("a", "b")] * 2, option_template=" {{ candidate.upper() }} of {{ text }}")
    assert options(load(task))[0] == [" A of This", " B of This"]


def test_a_cut_prompt_keeps_options_and_answers(tmp_path: Path) -> None:
    long = row("a", "b", label=[1, 0]) | {"text": "long " * 20}
    data = load(quiz(tmp_path, long, long, truncate="left"), max_length=20)
    assert data.num_truncated == 4  # training, dev and both of the test
    assert (data.test[0].label, data.test[0].also_right, len(data.test[0].options)) == (1, (0,), 2)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (row("a", "b", label=2), "label 2 in column label is neither a number from 0 to 1 nor one of"),
        (row("a", "b", label=-1), "label -1 in column label is neither"),
        (row("a", "b", label=True), "label True in column label is neither"),
        (row("a", "b", label="c"), "label 'c' in column label is neither"),
        (row("a", "b", label=[0, 5]), "label 5 in column label is neither"),
        (row("a", "b", label=[]), "column label names no right candidate"),
        (row("a", "b", "a"), "two options are the same, ' a'"),
        (row("a", " "), "`task.option_template` gives an empty option: [' a', '  ']"),
        (row("a", None), "candidate None is neither a text nor a number"),
        (row("a", ["b"]), "candidate ['b'] is neither"),
        (row("a", True), "candidate True is neither"),
        (row("a"), "['a'] is the only candidate, and a choice needs two"),
        (row(), "column names must hold a list of candidates, not []"),
        ({"text": "x", "names": "a, b", "label": 0}, "column names must hold a list of candidates, not 'a, b'"),
        ({"text": "x", "label": 0}, "no column `task.candidates`=names; this row has label, text"),
        ({"text": "x", "names": ["a", "b"]}, "no column `task.label_field`=label; this row has names, text"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, bad: dict[str, Any], said: str) -> None:
    message = refusal(quiz(tmp_path, row("a", "b"), bad, row("a", "b")))
    assert message.startswith(str(tmp_path)) and "films_train.jsonl line 2: " + said in message


def test_options_of_the_same_tokens_and_those_that_merge_name_the_row(tmp_path: Path) -> None:
    assert "line 1: two of [' a', ' a '] have the same tokens" in refusal(quiz(tmp_path, *[row("a", "a ")] * 2))
    glued = quiz(tmp_path, *[row("a", "b")] * 2, option_template="{{ candidate }}")
    assert "line 1: an option of ['a', 'b'] merges with" in refusal(glued, merges=(("s", "a"),))


# Settings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"candidates": None}, "set `task.verbalisers` to one text for each label, or `task.candidates`"),
        ({"verbalisers": {0: " bad", 1: " good"}}, "and not both"),
        ({"candidates": []}, "`task.candidates` names the fields that hold the candidates"),
        ({"candidates": {"a": 1}}, "`task.candidates` names the fields"),
        ({"candidates": ["a", 1]}, "`task.candidates` names the fields"),
        ({"option_template": " {{ candidate"}, "`task.option_template` is not a Jinja2 template"),
    ],
)
def test_bad_settings_name_their_key(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quiz(tmp_path, row("a"), **changes)
    assert said in str(caught.value)


# Metrics


def test_accuracy_counts_every_right_option_of_rows_of_any_size() -> None:
    two = Example(prompt=(1,), options=((2,), (3,)), label=0)
    four = Example(prompt=(1,), options=((2,), (3,), (4,), (5,)), label=1, also_right=(3,))
    metrics = ScoreMetrics(4)
    scores = ((-1.0, -2.0), (-3.0, -2.0, -2.5, -1.0), (-3.0, -2.0, -1.0, -4.0), (-2.0, float("nan"), -9.0, -9.0))
    metrics.update((two, four, four, four), Observation(losses=(1.0,) * 4, weights=(1.0,) * 4, scores=scores))
    assert float(metrics.accuracy.compute()) == 0.5
