"""What a checkpoint has learned, for others to load: an adapter or a merged model. Import it late: it loads torch."""

from zo_lightning.export.learned import Base, Learned, read_checkpoint
from zo_lightning.export.merged import write_merged
from zo_lightning.export.peft import write_adapter

__all__ = ["Base", "Learned", "read_checkpoint", "write_adapter", "write_merged"]
