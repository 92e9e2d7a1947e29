"""Backends answer evaluation requests and hold the bank where the weights are."""
