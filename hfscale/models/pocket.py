"""The kit's own models, and loading any causal language model by name of the kit, local folder, or Hub id."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfscale.data.names import looks_like_hub_id, looks_like_path, misspelt
from hfscale.errors import HfscaleError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

POCKET_MODELS = ("pocket-llama", "pocket-moe")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SHARD_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def resolve(model: str, needs_weights: bool = True) -> str:
    """What `from_pretrained` takes: the folder of a model of the kit, the absolute path of a local folder, or a Hub id.

    Needs no network and imports nothing big. Raises HfscaleError for a misspelt name, a folder that does not exist, and
    a folder that lacks its configuration or, unless needs_weights is False, its weights.
    """
    if model in POCKET_MODELS:
        return str(Path(__file__).parent / "checkpoints" / model)
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        _check_folder(folder, needs_weights)
        return str(folder.resolve())
    if looks_like_path(model):
        raise HfscaleError(f"There is no folder {folder} (looked in {Path.cwd()}).")
    if meant := misspelt(model, POCKET_MODELS):
        raise HfscaleError(f"The kit has no model named {model!r}: did you mean {meant}?")
    if not looks_like_hub_id(model):
        raise HfscaleError(
            f"{model!r} is no model: give a name of the kit ({', '.join(POCKET_MODELS)}), a local folder, "
            "or a Hub id such as organisation/name."
        )
    return model


def load_model(model: str, dtype: torch.dtype | None = None, **kwargs: Any) -> PreTrainedModel:
    """A causal language model in `dtype`. The default is float32, whatever it is stored in: bf16 loses small updates.

    model: see `resolve`. kwargs go to `from_pretrained`.
    """
    source = resolve(model)  # before the imports, which take seconds: a misspelt name is refused at once
    import torch
    from transformers import AutoModelForCausalLM

    with _plain_errors(model), _no_bar_for_local(source):
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype or torch.float32, **kwargs)


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer. One without a padding token pads with its end-of-text token: labels there are masked."""
    source = resolve(model)
    from transformers import AutoTokenizer

    with _plain_errors(model):
        tokenizer = AutoTokenizer.from_pretrained(source)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(model: str, needs_weights: bool = True) -> PretrainedConfig:
    """The model's configuration. With needs_weights=False a local folder may hold nothing but a config.json."""
    source = resolve(model, needs_weights)
    from transformers import AutoConfig

    with _plain_errors(model):
        return AutoConfig.from_pretrained(source)


def _check_folder(folder: Path, needs_weights: bool) -> None:
    if not (folder / "config.json").is_file():
        raise HfscaleError(f"The folder {folder} has no config.json: it is not a model that save_pretrained wrote.")
    if not needs_weights or any((folder / name).is_file() for name in WEIGHTS) or any(folder.glob("*.gguf")):
        return
    index = next((folder / name for name in SHARD_INDEXES if (folder / name).is_file()), None)
    if index is None:
        raise HfscaleError(
            f"The folder {folder} has a config.json and no weights: expected {', '.join(WEIGHTS + SHARD_INDEXES[:1])} "
            "or a .gguf file."
        )
    if missing := [name for name in _shards(index) if not (folder / name).is_file()]:
        raise HfscaleError(f"The folder {folder} lacks weights that its {index.name} names: {', '.join(missing)}.")


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise HfscaleError(
            f"{index} cannot be read: expected JSON with a weight_map from parameters to files."
        ) from None


@contextlib.contextmanager
def _no_bar_for_local(source: str) -> Iterator[None]:
    """No "Loading weights" bar in a notebook for what takes a blink; a download from the Hub keeps its bars."""
    from transformers.utils import logging

    silenced = Path(source).is_dir() and logging.is_progress_bar_enabled()
    if silenced:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if silenced:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _plain_errors(model: str) -> Iterator[None]:
    """Transformers' errors as one sentence. Theirs fill a screen, and speak of tokens and private repositories."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        cause = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        if model in POCKET_MODELS or Path(model).expanduser().is_dir():
            raise HfscaleError(f"{model} cannot be loaded: {cause}.") from error
        raise HfscaleError(
            f"{model!r} is neither a model of the kit ({', '.join(POCKET_MODELS)}), nor a local folder, and the Hub "
            f"could not be reached or does not have it: {cause}."
        ) from error
