"""Traffic: which collectives this rank took part in, on which axis of the mesh, how often, and how many bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}

# What the field calls each operation, by the start of torch's names for it. Names that move nothing are left out:
# wait_tensor and barrier only wait, _wrap_tensor_autograd would count its collective a second time.
COLLECTIVES = {
    "allreduce": "all-reduce",
    "all_reduce": "all-reduce",
    "allgather": "all-gather",
    "_allgather": "all-gather",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "_reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "all_to_all": "all-to-all",
    "shard_dim_alltoall": "all-to-all",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "receive",
}

# transformers' mesh dimension -> hfscale's axis. The experts have a mesh of their own over the same ranks.
MESH_DIMENSIONS = {"dp_replicate": "ddp", "fsdp": "fsdp", "tp": "tp"}
EXPERT_MESH_DIMENSIONS = {"efsdp": "fsdp", "ep": "ep"}


@dataclass(frozen=True)
class Flow:
    """One kind of collective on one axis."""

    collective: str
    axis: str


class TrafficCounter(TorchDispatchMode):
    """Counts collectives and their payload bytes while it is active, on this rank.

    Bytes are those that the operation's full-size side holds: the output of an all-gather, the input of a
    reduce-scatter, the tensor of an all-reduce or broadcast, the input of an all-to-all. What travels on the wire
    follows from them and from the backend's algorithm (a ring all-reduce moves 2(n-1)/n of it per rank).

        with TrafficCounter(axes) as traffic:
            loss.backward()
        traffic.rows()

    axes: process group name -> the mesh axes that it serves, see `mesh_axes`. A group that is not in it counts as
    "world". Autograd runs the backward pass of CPU tensors in the calling thread, so that DDP's reducer is seen too.
    """

    def __init__(self, axes: dict[str, list[str]]):
        super().__init__()
        self.axes = axes
        self.counts: Counter[Flow] = Counter()
        self.bytes: Counter[Flow] = Counter()

    def rows(self) -> list[dict]:
        """[{"collective", "axis", "count", "bytes"}], largest first."""
        flows = sorted(self.counts, key=lambda flow: (-self.bytes[flow], flow.collective, flow.axis))
        return [
            {"collective": f.collective, "axis": f.axis, "count": self.counts[f], "bytes": self.bytes[f]} for f in flows
        ]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented  # the same operation comes again with the local tensors
        result = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES and (collective := _collective(func)):
            flow = Flow(collective, self._axis(collective, _group_name(args, kwargs or {})))
            self.counts[flow] += 1
            self.bytes[flow] += _payload(collective, args, result)
        return result

    def _axis(self, collective: str, group: str | None) -> str:
        """Axes over the same ranks share a process group: there, tokens on their way to experts are what all-to-all
        moves.
        """
        axes = self.axes.get(group, ["world"])
        others = [axis for axis in axes if axis != "ep"]
        return "ep" if "ep" in axes and (collective == "all-to-all" or not others) else others[0]


def mesh_axes(model: torch.nn.Module) -> dict[str, list[str]]:
    """Process group name -> its axes (ddp, fsdp, tp, ep), for a model from `Strategy.load`. Plain DDP uses the world
    group.
    """
    manager = getattr(model, "_mesh_manager", None)
    if manager is None:
        return {dist.group.WORLD.group_name: ["ddp"]} if dist.is_initialized() else {}
    # Without expert parallelism the expert mesh exists all the same, and means nothing.
    experts = model.config.distributed_config.ep_size > 1
    axes: dict[str, list[str]] = {}
    for dimension, axis in (MESH_DIMENSIONS | (EXPERT_MESH_DIMENSIONS if experts else {})).items():
        mesh = manager.get_mesh(dimension)
        if mesh.size() > 1:
            names = axes.setdefault(mesh.get_group().group_name, [])
            if axis not in names:
                names.append(axis)
    return axes


def _collective(func) -> str | None:
    name = func._schema.name.split("::")[1]
    return next((word for start, word in COLLECTIVES.items() if name.startswith(start)), None)


def _group_name(args: tuple, kwargs: dict) -> str | None:
    """The process group of a collective: c10d passes the group itself, the functional ones its name."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.ProcessGroup.unbox(value).group_name
    texts = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
    return texts[-1] if texts else None


def _payload(collective: str, args: tuple, result) -> int:
    """Bytes of the full-size side. The in-place operations list output and input, so sizes are never summed over
    both.
    """
    sides = [_bytes(value) for value in (*args, result)]
    if collective == "all-to-all":
        # Input and output are both full-size and may differ: args[0] is the output where there are two tensor
        # arguments.
        # A rank may send nothing and receive much: what counts is which arguments are tensors, not their sizes.
        given = [_bytes(value) for value in args if _holds_tensors(value)]
        return given[1] if len(given) > 1 else given[0]
    return max(sides, default=0)


def _holds_tensors(value) -> bool:
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, torch.Tensor)


def _bytes(value) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, list | tuple):
        return sum(_bytes(item) for item in value)
    return 0
