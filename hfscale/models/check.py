"""Everything about a model that can be refused before a process starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hfscale.errors import HfscaleError
from hfscale.models.pocket import POCKET_MODELS, load_config, load_tokenizer, plain_errors, resolve
from hfscale.models.quiet import no_bars, no_log_lines
from hfscale.models.weights import check_header, dry_load, require_complete, safetensors_files

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

# task -> what its models are called, and the table of transformers that lists them
MODELS_FOR = {"causal-lm": ("a causal language model", "MODEL_FOR_CAUSAL_LM_MAPPING")}


def check_model(model: str | os.PathLike[str], task: str = "causal-lm") -> PreTrainedConfig:
    """The model's configuration, if the model can be trained for `task`; otherwise HfscaleError says why not.

    A model of another kind, a tokenizer that is missing, broken or another model's, weights that are cut off or do not
    fit the configuration. Of a local folder, headers are read and nothing is allocated. Of a Hub id, the weights are
    not looked at: `require_complete` does that once they are loaded.
    """
    model = os.fspath(model)
    config = load_config(model)
    if model in POCKET_MODELS:  # they are tested before they ship: the import of a tokenizer is saved
        return config
    _check_kind(model, config, *MODELS_FOR[task])
    _check_tokenizer(model, config, load_tokenizer(model))
    _check_weights(model, config)
    return config


def _check_kind(model: str, config: PreTrainedConfig, called: str, table: str) -> None:
    from transformers.models.auto import modeling_auto

    known = getattr(modeling_auto, table)
    classes = getattr(modeling_auto, f"{table}_NAMES")
    named = config.architectures or []
    # A class that the user has registered with transformers is in the first only.
    if type(config) in known and (config.model_type not in classes or not named or {*named} & {*classes.values()}):
        return
    kind = f"a {named[0]}" if named else f"of the type {config.model_type}"
    raise HfscaleError(
        f"{model} is {kind}, not {called} (one that predicts the next token, such as a LlamaForCausalLM): a recipe "
        "trains no other kind."
    )


def _check_tokenizer(model: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.pad_token_id is None:
        raise HfscaleError(
            f"The tokenizer of {model} has neither a padding nor an end-of-text token, so that texts of different "
            "lengths cannot share a batch: name one in its tokenizer_config.json (pad_token or eos_token)."
        )
    vocab_size = getattr(config.get_text_config(), "vocab_size", None)
    largest = _largest_id(tokenizer)
    if vocab_size and largest >= vocab_size:
        raise HfscaleError(
            f"The tokenizer of {model} gives token ids up to {largest} and the model knows those below {vocab_size}: "
            "they do not belong together, or tokens were added without model.resize_token_embeddings."
        )


def _largest_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Of the ids that a plain text and its batch can hold. Some models ship a token for images that they do not know:
    it is special, and no text becomes it.
    """
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    used = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id} - {None}
    return max(used | {*tokenizer.get_vocab().values()} - special)


def _check_weights(model: str, config: PreTrainedConfig) -> None:
    folder = Path(source := resolve(model))
    files = safetensors_files(folder) if folder.is_dir() else []
    for file in files:
        check_header(file)
    # Quantised weights are unpacked while they are loaded, which needs their values and often a GPU.
    if files and not getattr(config, "quantization_config", None):
        with plain_errors(model), no_bars(), no_log_lines():
            loading_info = dry_load(source)
        require_complete(model, loading_info)
