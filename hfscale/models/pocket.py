"""The kit's own models, and loading any causal language model by name of the kit, local folder, or Hub id."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfscale.data import hub
from hfscale.data.names import looks_like_hub_id, looks_like_path, misspelt
from hfscale.errors import HfscaleError
from hfscale.models.quiet import no_bars, no_log_lines
from hfscale.models.weights import SHARD_INDEXES, WEIGHTS, check_files

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

POCKET_MODELS = ("pocket-llama", "pocket-moe")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
NOT_HERE = f"neither a model of the kit ({', '.join(POCKET_MODELS)}), nor a local folder"


def resolve(model: str | os.PathLike[str], needs_weights: bool = True) -> str:
    """What `from_pretrained` takes: the folder of a model of the kit, the absolute path of a local folder, or a Hub id.

    Needs no network and imports nothing big. Raises HfscaleError for a misspelt name, a folder that does not exist, and
    a folder that lacks its configuration or, unless needs_weights is False, its weights.
    """
    model = os.fspath(model)
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


def load_model(model: str | os.PathLike[str], dtype: torch.dtype | None = None, **kwargs: Any) -> PreTrainedModel:
    """A causal language model in `dtype`. The default is float32, whatever it is stored in: bf16 loses small updates.

    model: see `resolve`. kwargs go to `from_pretrained`.
    """
    source, how = _find(model)  # before the imports, which take seconds: a misspelt name is refused at once
    import torch
    from transformers import AutoModelForCausalLM

    # A download from the Hub keeps its bars.
    with plain_errors(model), no_bars() if Path(source).is_dir() else contextlib.nullcontext():
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype or torch.float32, **how | kwargs)


def load_tokenizer(model: str | os.PathLike[str]) -> PreTrainedTokenizerBase:
    """The model's tokenizer. One without a padding token pads with its end-of-text token: labels there are masked."""
    source, how = _find(model)
    from transformers import AutoTokenizer

    try:
        with no_log_lines():
            tokenizer = AutoTokenizer.from_pretrained(source, **how)
    except Exception as error:  # what the readers of its many files raise has no common base
        raise _tokenizer_error(os.fspath(model), source, error) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(model: str | os.PathLike[str], needs_weights: bool = True) -> PretrainedConfig:
    """The model's configuration. With needs_weights=False a local folder may hold nothing but a config.json."""
    source, how = _find(model, needs_weights)
    from transformers import AutoConfig

    with plain_errors(model), no_log_lines():
        return AutoConfig.from_pretrained(source, **how)


@contextlib.contextmanager
def plain_errors(model: str | os.PathLike[str]) -> Iterator[None]:
    """Transformers' errors as one sentence. Theirs fill a screen, and speak of tokens and private repositories."""
    try:
        yield
    except Exception as error:  # what it, its validators and the readers of files raise has no common base
        model = os.fspath(model)
        if model in POCKET_MODELS or Path(model).expanduser().is_dir():
            raise HfscaleError(f"{model} cannot be loaded: {_cause(error)}.") from error
        raise HfscaleError(
            f"{model!r} is {NOT_HERE}, and the Hub could not be reached or does not have it: {_cause(error)}."
        ) from error


def _find(model: str | os.PathLike[str], needs_weights: bool = True) -> tuple[str, dict[str, bool]]:
    """What `from_pretrained` takes, and how: (source, keywords). Raises HfscaleError if the model can be had nowhere.

    trust_remote_code is named so that transformers refuses a model with code of its own; else it asks, in the terminal.
    local_files_only, since without a network the tokenizer of a model that is in the cache takes minutes to be loaded.
    """
    source, how = resolve(model, needs_weights), {"trust_remote_code": False}
    if Path(source).is_dir():
        return source, how
    cached = hub.cached_files(source, "models")
    is_here = "config.json" in cached and (not needs_weights or not cached.isdisjoint(WEIGHTS + SHARD_INDEXES))
    return source, how | {"local_files_only": hub.require_source(source, is_here, NOT_HERE)}


def _check_folder(folder: Path, needs_weights: bool) -> None:
    if not (folder / "config.json").is_file():
        raise HfscaleError(f"The folder {folder} has no config.json: it is not a model that save_pretrained wrote.")
    if needs_weights:
        check_files(folder)


def _tokenizer_error(model: str, source: str, error: Exception) -> HfscaleError:
    """Says which file keeps a tokenizer from being loaded, if that can be seen."""
    folder = Path(source)
    if not folder.is_dir():
        return HfscaleError(f"The tokenizer of {model!r} cannot be loaded from the Hub: {_cause(error)}.")
    if not (folder / TOKENIZER_FILES[0]).is_file():
        return HfscaleError(
            f"The folder {folder} has no {TOKENIZER_FILES[0]}, and no other tokenizer that can be loaded from it: save "
            "the tokenizer there too, with tokenizer.save_pretrained."
        )
    for file in (folder / name for name in TOKENIZER_FILES):
        if file.is_file() and not _is_json_object(file):
            return HfscaleError(f"{file} is broken: expected a JSON object, as tokenizer.save_pretrained writes it.")
    return HfscaleError(f"The tokenizer in {folder} cannot be loaded: {_cause(error)}.")


def _is_json_object(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
    except ValueError:
        return False


def _cause(error: BaseException) -> str:
    """The first line that says something: one that ends in a colon announces the next."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return said.rstrip(" .:") if " " in said else f"{type(error).__name__} {said}".strip()
