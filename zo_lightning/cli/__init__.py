"""Command line: ``zo-train``, ``zo-eval``, ``zo-export`` and ``zo-sweep-report``. Heavy imports wait."""
