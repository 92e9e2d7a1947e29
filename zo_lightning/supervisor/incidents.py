"""What happened to a supervised run, in numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

INCIDENTS = "incidents.jsonl"  # in the run's folder


@dataclass
class Incident:
    """One death or hang, and what it cost. All times are seconds; None until it is known.

    Args:
        cause: ``exit code 137``, ``hang in training``, ...
        step: steps done, as far as the supervisor has heard.
        detection: from the last sign of life to the supervisor's knowing.
        relaunch: from there to training, by a new process or the spare.
        first_step: from there to the end of the first new step.
        steps_lost: steps that were made again.
        by_spare: whether the spare took over.
        time: of the clock, at detection.
    """

    cause: str
    step: int
    detection: float
    relaunch: float | None = None
    first_step: float | None = None
    steps_lost: int | None = None
    by_spare: bool = False
    time: str = ""


@dataclass
class Report:
    """All incidents of a run and how it ended."""

    incidents: list[Incident] = field(default_factory=list)
    exit_code: int = 0
    reason: str = ""  # for giving up

    @property
    def steps_lost(self) -> int:
        """Over all incidents."""
        return sum(incident.steps_lost or 0 for incident in self.incidents)

    def note(self, incident: Incident, folder: Path) -> None:
        """Add a line to the run's folder, once the run has gone on or did not come to a new step."""
        folder.mkdir(parents=True, exist_ok=True)  # a run that dies early has not made it
        with (folder / INCIDENTS).open("a") as file:
            file.write(json.dumps(asdict(incident)) + "\n")

    def line(self) -> str:
        """One line of JSON."""

        def worst(name: str) -> float:
            values = [getattr(incident, name) for incident in self.incidents]
            return round(max((value for value in values if value is not None), default=0.0), 3)

        return json.dumps(
            {
                "incidents": len(self.incidents),
                "steps_lost": self.steps_lost,
                "worst_detection_s": worst("detection"),
                "worst_relaunch_s": worst("relaunch"),
                "worst_first_step_s": worst("first_step"),
                "exit_code": self.exit_code,
                "gave_up": self.reason or None,
            }
        )
