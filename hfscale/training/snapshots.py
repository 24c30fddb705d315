"""Whole parameters and gradients of a possibly sharded model, gathered and written for comparison."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on this rank. For a shard this is a collective: every rank of its mesh must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter, whole, on the CPU, as a copy. Every rank must call it."""
    return {name: _copy(parameter) for name, parameter in model.named_parameters()}


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradient of every parameter that has one, whole, on the CPU, as a copy. Every rank must call it."""
    return {name: _copy(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def local_bytes(model: torch.nn.Module) -> int:
    """Bytes of the parameters that this rank holds: of a sharded parameter its own part only."""
    return sum(_local(p).numel() * p.element_size() for p in model.parameters())


def write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write from rank 0; the others have taken part in the gathering."""
    if dist.get_rank() == 0:
        save_file(tensors, path)


def write_first_gradient(trainer, path: Path) -> None:
    """When the first optimizer step's gradient is complete, and before it is clipped, write it to `path`."""
    plain_step = trainer.training_step

    def training_step(*args, **kwargs):
        loss = plain_step(*args, **kwargs)
        if trainer.state.global_step == 0 and trainer.accelerator.sync_gradients:
            write(gradients(trainer.model), path)
        return loss

    trainer.training_step = training_step


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return full_tensor(tensor.detach()).cpu().clone().contiguous()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
