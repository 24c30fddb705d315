"""Corrects a gradient of transformers' tensor parallelism: norms inside a split attention, under gradient accumulation.

Qwen3's q_norm and k_norm are replicated, and each rank's gradient covers its own heads, so transformers sums it over
the tensor-parallel group. It does so on the *accumulated* gradient after every micro-batch: with gradients g1, g2 of
two micro-batches the result is tp * sum(g1) + sum(g2) and not sum(g1) + sum(g2) (transformers 5.24; measured: 0.7 of
the gradient's magnitude with two micro-batches, 4 times it with four). Here the sum is taken of each micro-batch's
gradient before it is accumulated. `tests/training/test_upstream.py` fails when transformers no longer
needs this.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.distributed.tensor_parallel import ReplicatedWithGradAllReduce

STYLE = "replicated_with_grad_allreduce"


class ReduceEachGradient(ReplicatedWithGradAllReduce):
    """A replicated parameter whose partial gradient is summed over the tp group once for each backward pass."""

    def install_forward(self, module: torch.nn.Module, mesh) -> torch.nn.Module:
        plain_forward = module.forward
        hooked: dict[str, torch.nn.Parameter] = {}

        def sum_over_group(gradient: torch.Tensor) -> torch.Tensor:
            gradient = gradient.contiguous().clone()
            dist.all_reduce(gradient, group=mesh.get_group())
            return gradient

        def forward(*args, **kwargs):
            # Hooked at the first forward and again when FSDP has put another tensor in the parameter's place.
            for name, parameter in module.named_parameters(recurse=False):
                if torch.is_grad_enabled() and parameter.requires_grad and hooked.get(name) is not parameter:
                    parameter.register_hook(sum_over_group)
                    hooked[name] = parameter
            return plain_forward(*args, **kwargs)

        module.forward = forward
        return module


def install() -> None:
    """Make models that are loaded from now on use the corrected style."""
    ALL_PARALLEL_STYLES.register(STYLE, ReduceEachGradient())
