"""The answer options of a row, and which of them are right: the same texts in every row, or the row's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from zo_lightning.errors import ConfigError, DataError
from zo_lightning.tasks.rows import Row
from zo_lightning.tasks.templates import RowTemplate


class Options(NamedTuple):
    """Option texts as they follow the prompt, and the places of the right ones, the one to train on first."""

    texts: tuple[str, ...]
    right: tuple[int, ...]


class OptionSource(Protocol):
    """Finds the options of a row."""

    def of(self, row: Row) -> Options:
        """Raises ``DataError`` for a row without them, or whose label is none of them."""
        ...


class Verbalisers:
    """One text for each label, in every row.

    Args:
        texts: the text of each label's option; their order numbers the labels.
        label_field: the field that holds the label.
        task: name of the task, for errors.

    Raises:
        ConfigError: not at least two different texts.
    """

    def __init__(self, texts: Mapping[Any, str], *, label_field: str, task: str) -> None:
        if not isinstance(texts, Mapping):
            raise ConfigError(
                f"task {task}: `task.verbalisers` gives each label its text, as in "
                f'{{low: " calm", high: " urgent"}}, not {texts!r}'
            )
        # Data, YAML and command line may give 0 or "0", true or "true".
        labels = {_label_text(label): option for label, option in texts.items()}
        options = tuple(labels.values())
        wrong = [option for option in options if not isinstance(option, str)]
        if wrong:
            raise ConfigError(f"task {task}: `task.verbalisers` must be texts, not {wrong[0]!r}: quote it")
        if len(options) < 2:
            raise ConfigError(f"task {task}: `task.verbalisers` needs at least two labels, not {len(options)}")
        if len(set(options)) < len(options):
            raise ConfigError(f"task {task}: two labels of `task.verbalisers` share one text: {list(options)}")
        if not all(option.strip() for option in options):
            raise ConfigError(f"task {task}: `task.verbalisers` has an empty option: {list(options)}")
        self._texts, self._labels, self._label_field = options, list(labels), label_field

    def of(self, row: Row) -> Options:
        """The common texts, and the place of the row's label."""
        label = _label_text(row.field(self._label_field, key="task.label_field"))
        if label not in self._labels:
            raise DataError(
                f"{row.origin}: label {label!r} in column {self._label_field} has no text in `task.verbalisers`, which "
                f"knows {', '.join(self._labels)}"
            )
        return Options(self._texts, (self._labels.index(label),))


class Candidates:
    """The row's own candidates, texts or numbers, as many as it has but at least two.

    Args:
        fields: the fields that hold one candidate each, or the one field that holds a list of them.
        template: how a ``candidate`` follows the prompt; Jinja2 text over it and the row's fields.
        label_field: the field that names the right candidate, by its number from 0 or by its text, or lists several.
        task: name of the task, for errors.

    Raises:
        ConfigError: ``fields`` names no field.
    """

    def __init__(self, fields: str | Sequence[str], template: RowTemplate, *, label_field: str, task: str) -> None:
        names = [fields] if isinstance(fields, str) else fields
        if not (isinstance(names, Sequence) and names and all(isinstance(name, str) and name for name in names)):
            raise ConfigError(
                f"task {task}: `task.candidates` names the fields that hold the candidates, as in [choice1, choice2], "
                f"or one field that holds a list of them, not {fields!r}"
            )
        self._fields, self._template, self._label_field = fields, template, label_field

    def of(self, row: Row) -> Options:
        """Each candidate's text in the template, and the places of the right ones."""
        candidates = self._candidates(row)
        wrong = [candidate for candidate in candidates if type(candidate) not in (str, int, float)]
        if wrong:
            raise DataError(f"{row.origin}: candidate {wrong[0]!r} is neither a text nor a number: mend the row")
        if len(candidates) < 2:
            raise DataError(
                f"{row.origin}: {candidates} is the only candidate, and a choice needs two: mend or remove the row, or "
                "change `task.candidates`"
            )
        texts = tuple(self._template.fill(row, candidate=candidate) for candidate in candidates)
        if not all(text.strip() for text in texts):
            raise DataError(f"{row.origin}: `task.option_template` gives an empty option: {list(texts)}")
        twice = [text for text in dict.fromkeys(texts) if texts.count(text) > 1]
        if twice:
            raise DataError(f"{row.origin}: two options are the same, {twice[0]!r}: mend the row or `task.candidates`")
        label = row.field(self._label_field, key="task.label_field")
        named = label if isinstance(label, list) else [label]
        if not named:
            raise DataError(f"{row.origin}: column {self._label_field} names no right candidate")
        return Options(texts, tuple(dict.fromkeys(self._place(name, candidates, row) for name in named)))

    def _candidates(self, row: Row) -> list[Any]:
        if not isinstance(self._fields, str):
            return [row.field(name, key="task.candidates") for name in self._fields]
        found = row.field(self._fields, key="task.candidates")
        if not isinstance(found, list) or not found:
            raise DataError(f"{row.origin}: column {self._fields} must hold a list of candidates, not {found!r}")
        return found

    def _place(self, label: Any, candidates: list[Any], row: Row) -> int:
        if label in range(len(candidates)) and type(label) is int:
            return int(label)
        if isinstance(label, str) and label in candidates:
            return candidates.index(label)
        raise DataError(
            f"{row.origin}: label {label!r} in column {self._label_field} is neither a number from 0 to "
            f"{len(candidates) - 1} nor one of the row's candidates {candidates}"
        )


def _label_text(label: Any) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)
