"""The kit's pocket models, and loading a model, its tokenizer or its configuration by name, folder or Hub id."""

from hfscale.models.check import check_model
from hfscale.models.pocket import POCKET_MODELS, load_config, load_model, load_tokenizer, resolve
from hfscale.models.weights import require_complete

__all__ = [
    "POCKET_MODELS",
    "check_model",
    "load_config",
    "load_model",
    "load_tokenizer",
    "require_complete",
    "resolve",
]
