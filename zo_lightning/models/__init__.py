"""From a name or a path to a model folder, its layout and its tokenizer. Import it late: it loads transformers."""

from zo_lightning.models.digest import weights_digest
from zo_lightning.models.layout import layout_of, trainable_layout
from zo_lightning.models.prepare import PreparedModel, load_model, load_tokenizer, prepare_model

__all__ = [
    "PreparedModel",
    "layout_of",
    "load_model",
    "load_tokenizer",
    "prepare_model",
    "trainable_layout",
    "weights_digest",
]
