"""Errors that a user can act on. The command line prints their text alone, without a traceback."""


class ZOError(Exception):
    """Base of every error whose message tells the user what to change."""


class ConfigError(ZOError):
    """A configuration that cannot run; the message names the config key and the way out."""


class DataError(ZOError):
    """Data or a model that is missing or malformed; the message names the file, row or field."""


class StaleVersionError(ZOError):
    """A request names a parameter version that the backend no longer holds."""


class JournalError(ZOError):
    """A run's journal is damaged, of another run, or cannot be written; the message names the file and the way out."""


class StaleIncarnationError(JournalError):
    """Another process has taken over the run, so this one must not write to its journal any more."""


class EngineError(ZOError):
    """The inference engine died or behaves unlike a supported version."""


class EngineDiedError(EngineError):
    """The inference engine was there and is gone: a new start may mend it."""


class DivergedError(ZOError):
    """Too many steps in a row had a loss that is not finite."""


class RankError(ZOError):
    """Another rank of a data-parallel run failed, is gone, or does something else than this one."""
