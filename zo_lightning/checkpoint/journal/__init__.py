"""A write-ahead journal of training steps: what it has acknowledged survives the death of the process."""

from zo_lightning.checkpoint.journal.journal import Journal
from zo_lightning.checkpoint.journal.record import Entry
from zo_lightning.checkpoint.journal.recovery import Recovered, read_journal
from zo_lightning.checkpoint.journal.segment import Identity

__all__ = ["Entry", "Identity", "Journal", "Recovered", "read_journal"]
