"""Tasks like COPA and ReCoRD, of rows composed from a seed: what `zo-bench tries` and the tests score.

The names in the ReCoRD-like rows are those of bands, made of words that are one token each even in the tiny models'
tokenizer: one to five tokens a name, and many names begin alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zo_lightning.config.presets import preset
from zo_lightning.tasks import TextTask

Row = dict[str, Any]

_THINGS = ("rope", "lamp", "bridge", "kettle", "ladder", "window", "boat", "tent", "gate", "bicycle", "radio", "fence")
_EVENTS = (  # what happened, why, and what followed
    ("broke in the night", "It had been worn thin for years.", "We tied the two ends together."),
    ("was sold at once", "The price had been cut in half.", "I put the money in the bank."),
    ("fell into the water", "Nobody had made it fast.", "Two men dived in after it."),
    ("caught fire", "Someone had left a candle beside it.", "The neighbours called for help."),
    ("was painted green", "The old colour had peeled off.", "Visitors no longer found the house."),
    ("could not be found", "A friend had borrowed it.", "They bought a new one in town."),
)
_HEADS = ("the great", "the good", "the bad", "the terrible", "no good", "great", "good", "bad")
_TAILS = ("", " and great", " and bad", " and the good", " is great", " was bad", " is the great", " was no good")
_NEWS = ("{a} met {b}.", "{a} sang first.", "{a} beat {b} twice.", "{b} came late, so {a} went on.", "{a} left early.")
_QUERIES = ("On @day the prize went to @placeholder@end", "@day ended when the crowd called for @placeholder@end")
_ENDS = (".", ", and nobody was surprised.", ", who thanked the town.")


_PRESETS = {"copa": "copa", "record": "record", "names": "record"}
# The names alone are the options, and the statement up to its gap belongs to the prompt.
_NAMES = {
    "template": "{{ passage }}\n- {{ query.split('@placeholder')[0].rstrip() }}",
    "option_template": " {{ candidate }}",
}


def make_task(name: str, rows: Sequence[Row], folder: Path) -> TextTask:
    """A shipped task whose training rows are these, written to a folder.

    Args:
        name: ``copa``; ``record``, whose options are whole statements; or ``names``, ReCoRD whose options are names.
        rows: in the task's fields.
        folder: an existing one.
    """
    for file, part in (("train.jsonl", [*rows, rows[0]]), ("val.jsonl", rows[:1])):  # one more for the dev split
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in part))
    sizes = {"num_train": len(rows), "num_dev": 1, "num_test": 1, "sampling": "first"}
    changes = _NAMES if name == "names" else {}
    return TextTask(**preset("task", _PRESETS[name]) | changes | sizes | {"data_dir": str(folder)})


def copa_rows(count: int, *, seed: int) -> list[Row]:
    """Premises with two possible causes or effects, in COPA's fields.

    Examples:
        >>> sorted(copa_rows(1, seed=0)[0])
        ['choice1', 'choice2', 'label', 'premise', 'question']
        >>> copa_rows(3, seed=0) == copa_rows(3, seed=0) != copa_rows(3, seed=1)
        True
    """
    drawn = random.Random(seed)
    rows = []
    for _ in range(count):
        right, wrong = drawn.sample(_EVENTS, 2)
        asked, label = drawn.randrange(2), drawn.randrange(2)
        first, second = (right, wrong) if label == 0 else (wrong, right)
        rows.append(
            {
                "premise": f"The {drawn.choice(_THINGS)} {right[0]}.",
                "question": ("cause", "effect")[asked],
                "choice1": first[1 + asked],
                "choice2": second[1 + asked],
                "label": label,
            }
        )
    return rows


def record_rows(count: int, *, seed: int, length: int = 600) -> list[Row]:
    """Passages with a statement that has a gap, and the 8 to 24 names that may fill it, in ReCoRD's fields.

    Args:
        count: how many.
        seed: every seed gives other rows.
        length: characters of a passage, at least.

    Examples:
        >>> row = record_rows(1, seed=0)[0]
        >>> len(row["passage"]) >= 600, 8 <= len(row["entities"]) <= 24, row["answers"][0] in row["entities"]
        (True, True, True)
    """
    drawn = random.Random(seed)
    names = [head + tail for head in _HEADS for tail in _TAILS]
    rows = []
    for _ in range(count):
        entities = drawn.sample(names, drawn.randint(8, 24))
        passage = ""
        while len(passage) < length:
            a, b = drawn.sample(entities, 2)
            passage += drawn.choice(_NEWS).format(a=a, b=b) + " "
        query = drawn.choice(_QUERIES).replace("@day", drawn.choice(("Monday", "Friday", "Sunday")))
        rows.append(
            {
                "passage": passage.strip(),
                "query": query.replace("@end", drawn.choice(_ENDS)),
                "entities": entities,
                "answers": [drawn.choice(entities)],
            }
        )
    return rows
