"""Continuous drain of a first-order run: shards captured at different steps are replayed to one version."""
