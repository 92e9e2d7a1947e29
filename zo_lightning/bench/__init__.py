"""The benchmarks of ``zo-bench``: each subcommand is a module whose ``run`` measures on a workbench."""
