"""zo-lightning: fine-tune language models with forward passes only, every one an inference request."""

__version__ = "0.1.0"
