"""Callbacks that a configuration names; nothing in the library imports them."""
