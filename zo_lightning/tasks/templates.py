"""Jinja templates over the fields of a row, with errors that name the row."""

from __future__ import annotations

from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from zo_lightning.errors import ConfigError, DataError
from zo_lightning.tasks.rows import Row

# A newline at the end of a template is part of the prompt.
_JINJA = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


class RowTemplate:
    """A text with gaps for the fields of a row.

    Args:
        source: Jinja2 text.
        key: config key that holds it, for errors.
        task: name of the task, for errors.

    Raises:
        ConfigError: the text is not a template.
    """

    def __init__(self, source: str, *, key: str, task: str) -> None:
        self._key = key
        try:
            self._template = _JINJA.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"task {task}: `{key}` is not a Jinja2 template: {error}") from error

    def fill(self, row: Row, **more: Any) -> str:
        """The text for one row; ``more`` are further fields.

        Raises:
            DataError: the row lacks a field that the template uses, or has another type there.

        Examples:
            >>> RowTemplate("{{ a }} or {{ b }}", key="task.template", task="demo").fill(Row("line 1", {"a": 1}), b=2)
            '1 or 2'
        """
        try:
            return self._template.render(row.present, **more)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise DataError(f"{row.origin}: `{self._key}` cannot be filled: {error}; {row.columns}") from error
