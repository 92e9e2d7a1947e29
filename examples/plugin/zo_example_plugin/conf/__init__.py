"""Options that this plug-in brings."""
