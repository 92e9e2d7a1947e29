"""Tasks turn rows into `core.types.Example`s: prompt tokens, option tokens and the right option."""

from zo_lightning.tasks.encoding import Task, TaskData, TaskTexts
from zo_lightning.tasks.sentiment import SentimentTask
from zo_lightning.tasks.text import TextTask

__all__ = ["SentimentTask", "Task", "TaskData", "TaskTexts", "TextTask"]
