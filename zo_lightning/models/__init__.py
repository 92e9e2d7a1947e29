"""From a name or a path to a model folder, its layout and its tokenizer. Import it late: it loads transformers."""

from zo_lightning.models.digest import weights_digest
from zo_lightning.models.layout import linear_layout
from zo_lightning.models.prepare import PreparedModel, load_tokenizer, prepare_model

__all__ = ["PreparedModel", "linear_layout", "load_tokenizer", "prepare_model", "weights_digest"]
