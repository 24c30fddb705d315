"""The kit's pocket models, and loading a model, its tokenizer or its configuration by name, folder or Hub id."""

from hfscale.models.pocket import POCKET_MODELS, load_config, load_model, load_tokenizer, resolve

__all__ = ["POCKET_MODELS", "load_config", "load_model", "load_tokenizer", "resolve"]
