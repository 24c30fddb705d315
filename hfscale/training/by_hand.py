"""The training step of every data strategy, written out: what Trainer, accelerate and transformers do, in one page.

For reading. `tests/training/test_by_hand.py` holds it equal to ScaleTrainer. Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

IGNORED = -100  # the label of a position that is no target: padding, or a row that is there for its shape only


def train(model, batches, learning_rate: float, data_ranks: int = 1, strategy: str = "single") -> list[float]:
    """Train on `batches`, one optimizer step each, and return the losses. Each rank gets its own rows of every batch.

    strategy "single": one rank, nothing to communicate.
    strategy "ddp": every rank holds the whole model, and gradients are averaged here, after the backward pass.
    strategy "fsdp": the model comes from `Strategy.load`, and gathers and reduces its own shards.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(batches))
    model.train()
    losses = []
    for batch in batches:
        # The loss is a mean over the tokens of the *global* batch, so every rank divides by the sum over all ranks.
        # A mean of the ranks' own means would weigh a token more on the rank that has fewer of them.
        labels_BT = batch["labels"][:, 1:]
        tokens = all_reduce_sum(labels_BT.ne(IGNORED).sum())
        logits_BTV = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        loss = (
            F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED, reduction="sum")
            / tokens
        )
        # DDP and FSDP *average* gradients over the data ranks; scaling the loss up first makes the average a sum.
        (loss * data_ranks).backward()
        if strategy == "ddp":
            average_gradients(model)
        clip_gradients(model, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(all_reduce_sum(loss.detach()).item())
    return losses


def average_gradients(model) -> None:
    """What DistributedDataParallel does. It packs gradients into buckets, and starts while backward still runs."""
    for parameter in model.parameters():
        if parameter.grad is not None:  # a frozen parameter has none
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= dist.get_world_size()


def clip_gradients(model, largest_norm: float) -> None:
    """Scale all gradients so that their norm over the whole model, all shards together, is at most `largest_norm`."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    squares = torch.stack([local(g).square().sum() for g in gradients]).sum()
    if isinstance(gradients[0], DTensor):  # each rank has added up its own shards only
        squares = all_reduce_sum(squares)
    scale = torch.clamp(largest_norm / (squares.sqrt() + 1e-6), max=1.0)
    for gradient in gradients:
        local(gradient).mul_(scale)


def all_reduce_sum(value):
    value = value.clone()
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
