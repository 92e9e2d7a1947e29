"""What a checkpoint has learned, for others to load: an adapter or a merged model. Import it late: it loads torch."""

from zo_lightning.export.card import WITHOUT_GPU, serve_adapter_command, serve_command
from zo_lightning.export.learned import Base, Learned, read_checkpoint
from zo_lightning.export.merged import write_merged
from zo_lightning.export.peft import write_adapter

__all__ = [
    "WITHOUT_GPU",
    "Base",
    "Learned",
    "read_checkpoint",
    "serve_adapter_command",
    "serve_command",
    "write_adapter",
    "write_merged",
]
