"""Before step 1 the ranks compare what they are about to do: a difference ends the run, naming what and where."""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from importlib.metadata import version

import torch
import torch.distributed as dist

from hfscale.errors import HfscaleError
from hfscale.recipe import Recipe
from hfscale.training.snapshots import full_tensor

PACKAGES = ("hfscale", "torch", "transformers", "accelerate", "datasets")
# Different on each rank by design.
OF_ONE_RANK = {"local_rank", "logging_dir"}


def require(facts: dict[str, str]) -> None:
    """Every rank calls it with {what: value}; raises HfscaleError on all ranks if any two of them differ."""
    everyone: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, facts)
    for what in dict.fromkeys(name for theirs in everyone for name in theirs):
        values = [theirs.get(what, "absent") for theirs in everyone]
        usual, _ = Counter(values).most_common(1)[0]
        odd = [rank for rank, value in enumerate(values) if value != usual]
        if odd:
            who = f"rank {odd[0]} disagrees" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} disagree"
            raise HfscaleError(
                f"{who} with the others about {what}: {_short(values[odd[0]])} instead of {_short(usual)}. "
                "All ranks must start from the same; nothing was trained."
            )


def of_recipe(recipe: Recipe) -> dict[str, str]:
    return {f"the recipe's {name}": str(value) for name, value in recipe.to_dict().items()}


def of_arguments(arguments) -> dict[str, str]:
    values = {name: value for name, value in arguments.to_dict().items() if name not in OF_ONE_RANK}
    return {f"the TrainingArguments' {name}": str(value) for name, value in values.items()}


def of_versions() -> dict[str, str]:
    versions = {"Python": platform.python_version()} | {package: version(package) for package in PACKAGES}
    return {f"the version of {name}": value for name, value in versions.items()}


def of_rows(dataset) -> dict[str, str]:
    return {"the training data": f"{len(dataset)} rows, digest {_digest(json.dumps(dataset['input_ids'][:]).encode())}"}


def of_weights(model: torch.nn.Module) -> dict[str, str]:
    """A digest of every whole parameter; gathering the sharded ones is a collective, so every rank calls this."""
    return {
        f"the initial weights of {name}": "digest " + _digest(_bytes_of(full_tensor(parameter.detach())))
        for name, parameter in model.named_parameters()
    }


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _short(value: str) -> str:
    return value if len(value) <= 60 else value[:57] + "..."
