"""Precision policies: what each name sets in TrainingArguments, and which hardware it needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from hfscale.errors import HfscaleError


@dataclass(frozen=True)
class Policy:
    """One way to compute. Weights are loaded in fp32 under every policy here: they are the master weights."""

    name: str
    purpose: str
    training_arguments: dict = field(default_factory=dict)
    mixed_precision: str = "no"  # accelerate's word for the autocast dtype
    needs_cuda: bool = False


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("fp32", "everything in 32 bits: the reference that the others are compared with"),
        Policy(
            "bf16",
            "matrix products in bfloat16 by autocast, weights and optimizer in fp32; no loss scaling needed",
            {"bf16": True},
            "bf16",
        ),
        Policy(
            "fp16",
            "matrix products in float16 by autocast, with loss scaling because of its small range",
            {"fp16": True},
            "fp16",
            needs_cuda=True,
        ),
        Policy(
            "tf32",
            "fp32 storage, matrix products with 10 bits of mantissa on NVIDIA Ampere or newer",
            {"tf32": True},
            needs_cuda=True,
        ),
    )
}


def policy(name: str, device: str | None = None) -> Policy:
    """The policy of that name; raises HfscaleError when it is unknown, or cannot run on `device` ("cpu" or "cuda").

    fp16 on a CPU is accepted by the libraries and silently trains in fp32, hence the refusal.
    """
    if name not in POLICIES:
        raise HfscaleError(f"Precision {name!r} is unknown: choose one of {', '.join(POLICIES)}.")
    chosen = POLICIES[name]
    if device == "cpu" and chosen.needs_cuda:
        instead = "bf16" if chosen.mixed_precision == "fp16" else "fp32"
        raise HfscaleError(
            f"Precision {name} needs an NVIDIA GPU; a CPU would silently train in fp32. Use precision='{instead}'."
        )
    return chosen
