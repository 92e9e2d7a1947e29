"""Command line: ``zo-train`` and ``zo-eval``. Heavy imports wait until a run starts."""
