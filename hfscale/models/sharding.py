"""What a strategy should do to each parameter, worked out from the model's plans alone: which rank holds how much of
it.

Deliberately a second method: nothing here asks transformers to shard anything, so that the result can be held against
what the ranks really hold.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hfscale.strategy import Strategy

if TYPE_CHECKING:
    import torch

# Style of a parameter in a tensor-parallel plan -> the dim that is split, counted from the end; None: every rank has
# it all. For a vector (a bias) the column styles split it, the row styles keep it whole.
TP_SPLIT_DIM = {
    "colwise": -2,
    "colwise_gather_output": -2,
    "colwise_rep": -2,
    "packed_colwise": -2,
    "rowwise": -1,
    "rowwise_rep": -1,
    "rowwise_split_input": -1,
    "packed_rowwise": -1,
    "embedding_rowwise": -2,
    "embedding_colwise": -1,
}
PACKED = {"packed_colwise", "packed_rowwise"}  # two matrices in one (gate and up): each half is split by itself


@dataclass(frozen=True)
class ParameterSpec:
    """Name and shape of a whole parameter, and the style that the model's plans give it."""

    name: str
    shape: tuple[int, ...]
    tp_style: str | None
    is_expert: bool

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def planned_bytes(specs: list[ParameterSpec], strategy: Strategy, rank: int, element_size: int = 4) -> int:
    """Parameter bytes that `rank` should hold under `strategy`."""
    return element_size * sum(math.prod(planned_shape(spec, strategy, rank)) for spec in specs)


def planned_shape(spec: ParameterSpec, strategy: Strategy, rank: int) -> tuple[int, ...]:
    """The part of one parameter that `rank` should hold. tp is the innermost mesh axis, then fsdp, then ddp."""
    shape = list(spec.shape)
    fsdp, place = strategy.fsdp, rank // strategy.tp % strategy.fsdp
    if strategy.ep > 1 and spec.is_expert:
        # Experts have a mesh of their own over the same ranks: ep innermost, and fsdp over what is left of the ranks.
        shape[0] = _part(shape[0], strategy.ep, rank % strategy.ep)
        fsdp = strategy.fsdp * strategy.tp // strategy.ep
        place = rank // strategy.ep % fsdp
    elif strategy.tp > 1 and (dim := _split_dim(spec)) is not None:
        halves = 2 if spec.tp_style in PACKED else 1
        shape[dim] = halves * _part(shape[dim] // halves, strategy.tp, rank % strategy.tp)
    if fsdp > 1:
        shape[0] = _part(shape[0], fsdp, place)
    return tuple(shape)


def parameter_specs(model: str) -> list[ParameterSpec]:
    """Every parameter of a causal LM (tied ones once), from a build without memory (meta device)."""
    import torch
    from transformers import AutoModelForCausalLM

    from hfscale.models import load_config

    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(load_config(model), dtype=torch.float32)
    return [_spec(name, parameter, whole) for name, parameter in whole.named_parameters()]


def _spec(name: str, parameter: torch.Tensor, model) -> ParameterSpec:
    style = _style(name, model.tp_plan)
    return ParameterSpec(name, tuple(parameter.shape), style, _style(name, model.ep_plan) is not None)


def _style(name: str, plan: dict[str, str]) -> str | None:
    """The plan's rule for a parameter: its own, or that of the module it belongs to. Layer numbers are written `*`."""
    generic = re.sub(r"\.\d+(?=\.|$)", ".*", name)
    return plan.get(generic) or plan.get(generic.rpartition(".")[0])


def _split_dim(spec: ParameterSpec) -> int | None:
    dim = TP_SPLIT_DIM.get(spec.tp_style)
    if dim is None or len(spec.shape) > 1:
        return dim
    return -1 if dim == -2 else None


def _part(size: int, parts: int, index: int) -> int:
    """Length of piece `index` when `size` is cut as torch.chunk cuts it: equal pieces, the last ones shorter or
    empty.
    """
    piece = -(-size // parts)
    return max(0, min(piece, size - index * piece))
