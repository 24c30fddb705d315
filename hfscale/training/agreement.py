"""Before step 1 the ranks compare what they are about to do: a difference ends the run, naming what differs and
where.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from importlib.metadata import version

import torch
import torch.distributed as dist

from hfscale.errors import HfscaleError
from hfscale.training.snapshots import full_tensor

PACKAGES = ("torch", "transformers", "accelerate", "datasets")
# Different on each rank by design.
OF_ONE_RANK = {"local_rank", "logging_dir"}


def require(digests: dict[str, str]) -> None:
    """Every rank calls it with {what: digest}; raises HfscaleError on all ranks if any two ranks differ in anything."""
    everyone: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, digests)
    for what in digests:
        values = [theirs[what] for theirs in everyone]
        usual, _ = Counter(values).most_common(1)[0]
        odd = [rank for rank, value in enumerate(values) if value != usual]
        if odd:
            who = f"rank {odd[0]} disagrees" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} disagree"
            raise HfscaleError(
                f"{who} with the others about {what}: all ranks must start from the same. Nothing was trained."
            )


def digest(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def of_arguments(arguments) -> str:
    values = {name: value for name, value in arguments.to_dict().items() if name not in OF_ONE_RANK}
    return digest(json.dumps(values, sort_keys=True, default=str))


def of_versions() -> str:
    return digest(json.dumps([platform.python_version(), *(version(package) for package in PACKAGES)]))


def of_rows(dataset) -> str:
    return digest(json.dumps(dataset["input_ids"][:]))


def of_weights(model: torch.nn.Module) -> str:
    """Digest of all whole parameters; gathering the sharded ones is a collective, so every rank calls this."""
    sha = hashlib.sha256()
    for name, parameter in model.named_parameters():
        sha.update(name.encode())
        sha.update(full_tensor(parameter.detach()).contiguous().view(torch.uint8).cpu().numpy())
    return sha.hexdigest()
