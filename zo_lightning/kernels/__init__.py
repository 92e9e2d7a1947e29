"""Compiled loops for CPUs, where torch's own operations leave most of the time on the table."""
