"""Callbacks, by name in a configuration; of the library, only the command line imports any."""
