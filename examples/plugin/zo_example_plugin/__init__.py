"""A plug-in of zo-lightning. Empty, so that composing a configuration loads nothing heavy."""
