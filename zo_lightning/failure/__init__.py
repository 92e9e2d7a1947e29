"""Failures on purpose: which, when, and the record of those that struck. ``failure=[kill,slow_disk]`` composes them."""

from zo_lightning.failure.failures import Failures, files_for
from zo_lightning.failure.files import FaultyFiles
from zo_lightning.failure.ledger import LEDGER, Ledger
from zo_lightning.failure.process import CrossDeviceTmp, EngineDeath, Hang, Kill, NanLoss, Poisson, Sigterm
from zo_lightning.failure.storage import BitFlip, DiskFull, SlowDisk, SyncError, TornWrite

__all__ = [
    "LEDGER",
    "BitFlip",
    "CrossDeviceTmp",
    "DiskFull",
    "EngineDeath",
    "Failures",
    "FaultyFiles",
    "Hang",
    "Kill",
    "Ledger",
    "NanLoss",
    "Poisson",
    "Sigterm",
    "SlowDisk",
    "SyncError",
    "TornWrite",
    "files_for",
]
