"""A parent that watches a run, and starts it again when it dies or hangs. Nothing here imports torch."""

from zo_lightning.supervisor.heartbeat import AGAIN, FIRST, SPARE, Heartbeat, connect, heartbeat
from zo_lightning.supervisor.incidents import Incident, Report
from zo_lightning.supervisor.patience import Patience
from zo_lightning.supervisor.supervisor import Settings, Supervisor

__all__ = [
    "AGAIN",
    "FIRST",
    "SPARE",
    "Heartbeat",
    "Incident",
    "Patience",
    "Report",
    "Settings",
    "Supervisor",
    "connect",
    "heartbeat",
]
