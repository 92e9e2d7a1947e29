"""What the terminal shows: our own lines, not the chatter of the libraries beneath."""

from __future__ import annotations

import logging
import os
import warnings

from zo_lightning.imports import import_lightning


def quiet_libraries() -> None:
    """Keep the libraries' notes out of the terminal; the run's log file still has their log lines.

    Call it before torch is imported, which reads its environment then.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    for known in ("LeafSpec", "Checkpoint directory .* exists and is not empty", "The dirpath has changed"):
        warnings.filterwarnings("ignore", message=f".*{known}.*")
    import_lightning()  # it sets its own level when imported
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for asked_for in ("profilers", "callbacks.early_stopping"):  # a profile, and why a run ended
        logging.getLogger(f"lightning.pytorch.{asked_for}").setLevel(logging.INFO)
