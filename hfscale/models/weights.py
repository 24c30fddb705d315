"""The stored weights of a model: are all files there and whole, and do they hold every parameter that it has?"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hfscale.errors import HfscaleError

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SHARD_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SHOWN = 3


def require_complete(model: str, loading_info: dict[str, Collection]) -> None:
    """Raise HfscaleError unless the checkpoint held every parameter of the model, in its shape.

    loading_info: from `from_pretrained(…, output_loading_info=True, ignore_mismatched_sizes=True)`. Transformers fills
    what is missing with random values and trains on; it knows of tied and renamed parameters, which are not missing.
    """
    if mismatched := sorted(loading_info["mismatched_keys"], key=lambda row: _in_order(row[0])):
        name, stored, wanted = mismatched[0]
        more = f", and so with {len(mismatched) - 1} more" if len(mismatched) > 1 else ""
        raise HfscaleError(
            f"The weights of {model} do not fit its configuration: {name} is stored as {_shape(stored)} where "
            f"{_shape(wanted)} is expected{more}. Use the config.json that was saved with the weights."
        )
    if missing := sorted(loading_info["missing_keys"], key=_in_order):
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise HfscaleError(
            f"The weights of {model} lack {len(missing)} of the parameters that its configuration asks for: "
            f"{', '.join(missing[:SHOWN])}{more}. They would be random: use the config.json that was saved with the "
            "weights."
        )


def check_files(folder: Path) -> None:
    """Refuse a folder with no weights, or without a part that its index names. Opens nothing but the index."""
    if any((folder / name).is_file() for name in WEIGHTS) or any(folder.glob("*.gguf")):
        return
    index = _index(folder)
    if index is None:
        raise HfscaleError(
            f"The folder {folder} has a config.json and no weights: expected {', '.join(WEIGHTS + SHARD_INDEXES[:1])} "
            "or a .gguf file."
        )
    if missing := [name for name in _shards(index) if not (folder / name).is_file()]:
        raise HfscaleError(f"The folder {folder} lacks weights that its {index.name} names: {', '.join(missing)}.")


def safetensors_files(folder: Path) -> list[Path]:
    """The safetensors files that `from_pretrained` would read; none where the weights are of another kind."""
    if (single := folder / WEIGHTS[0]).is_file():
        return [single]
    if (folder / WEIGHTS[1]).is_file() or (index := _index(folder)) is None:
        return []
    return [folder / name for name in _shards(index) if name.endswith(".safetensors")]


def check_header(path: Path) -> None:
    """Refuse a safetensors file that is not whole. Its header, which is all that is read, says how long it must be."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            file.keys()
    except SafetensorError as error:
        with path.open("rb") as content:
            is_pointer = content.read(20).startswith(b"version https://git")
        if is_pointer:
            raise HfscaleError(
                f"{path} is a Git LFS pointer in place of the weights: run `git lfs pull` in that folder."
            ) from None
        cause = str(error).rpartition(": ")[2]
        raise HfscaleError(
            f"{path} is not a whole safetensors file ({cause}): it was cut off when it was written or copied."
        ) from None


def dry_load(source: str) -> dict[str, Collection]:
    """The loading info of a causal language model, from its files' headers: nothing is allocated (meta device)."""
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True, "device_map": "meta"}
    return AutoModelForCausalLM.from_pretrained(source, trust_remote_code=False, **options)[1]


def _index(folder: Path) -> Path | None:
    return next((folder / name for name in SHARD_INDEXES if (folder / name).is_file()), None)


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise HfscaleError(
            f"{index} cannot be read: expected JSON with a weight_map from parameters to files."
        ) from None


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sorts layer 10 after layer 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"\.", name)]


def _shape(shape: Collection[int]) -> str:
    return " × ".join(map(str, shape)) or "a single number"
