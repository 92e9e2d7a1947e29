"""Whether numba can keep the compiled loops for the next process."""

from __future__ import annotations

import logging

from numba import njit

log = logging.getLogger(__name__)


def _nothing() -> None:
    """Never called."""


def _can_keep() -> bool:
    try:
        njit(cache=True)(_nothing)  # looks for a folder at once, and raises where it finds none
    except RuntimeError:
        log.warning(
            "neither the package's folder nor ~/.cache can be written: loops are compiled in every process, "
            "which takes some seconds; NUMBA_CACHE_DIR=<folder> keeps them"
        )
        return False
    return True


CAN_KEEP = _can_keep()  # the loops' ``cache=``, which would end an import where numba has no folder
