"""Any step of a run, rebuilt from its journal without a forward pass. Import it late: it loads torch."""

from zo_lightning.replay.compare import Parting, distance, parting
from zo_lightning.replay.loops import LoopsBackend
from zo_lightning.replay.rebuild import FactorHolder, Holder, Replay
from zo_lightning.replay.run import WITHOUT, Run, Saved, read_run
from zo_lightning.replay.verify import Line, verify

__all__ = [
    "WITHOUT",
    "FactorHolder",
    "Holder",
    "Line",
    "LoopsBackend",
    "Parting",
    "Replay",
    "Run",
    "Saved",
    "distance",
    "parting",
    "read_run",
    "verify",
]
