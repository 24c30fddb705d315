"""Checks of the exercises in 06_ddp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hfscale.exercises.result import SECONDS, Checked, Wrong, attempt, checked, require_attempt
from hfscale.launching.launch import launch


def check_average_gradients(average_gradients: Callable) -> Checked:
    """`average_gradients(model)` replaces every gradient by its mean over the ranks, with one all-reduce in all."""
    return checked(
        lambda: _check_average_gradients(average_gradients),
        "fill in average_gradients(model): all gradients in one bucket, one all-reduce.",
    )


def _check_average_gradients(average_gradients: Callable) -> str:
    require_attempt(average_gradients)
    for ranks in (2, 3):
        by_rank = launch(_average_here, average_gradients, world_size=ranks, device="cpu", timeout=SECONDS).by_rank
        _judge_average(by_rank, ranks)
    if (count := by_rank[0]["all_reduces"]) != 1:
        raise Wrong(
            f"the gradients are averaged, and it took {count} all-reduces: put them into one bucket (torch.cat of the "
            "flattened gradients) and reduce that."
        )
    return (
        "gradients are averaged over two and over three ranks, with one all-reduce; frozen parameters are left alone."
    )


def _average_here(average_gradients: Callable) -> dict:
    """A small model whose gradients on this rank are known: its number, counted from 1, in every place.

    Returns the factor of every gradient against the mean over the ranks, and how many all-reduces there were.
    """
    import torch
    import torch.distributed as dist

    from hfscale.profiling.traffic import TrafficCounter

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    model[1].requires_grad_(False)  # frozen: it has no gradient
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, dist.get_rank() + 1.0)
    with TrafficCounter({}) as traffic:
        average_gradients(model)
    mean = (dist.get_world_size() + 1) / 2
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    factors = [float(value) / mean for gradient in gradients for value in (gradient.min(), gradient.max())]
    reductions = sum(row["count"] for row in traffic.rows() if row["collective"] == "all-reduce")
    frozen = any(p.grad is not None for p in model[1].parameters())
    return {"factors": factors, "all_reduces": reductions, "frozen_got_gradient": frozen}


def _judge_average(by_rank: list[dict], ranks: int) -> None:
    where = f"with {ranks} ranks"
    for rank, seen in enumerate(by_rank):
        factors = seen["factors"]
        if max(factors) - min(factors) > 1e-4:
            raise Wrong(
                f"{where}, some of rank {rank}'s gradients are {max(factors):.3g} times the mean over the ranks and "
                f"others {min(factors):.3g} times: treat them all alike."
            )
    factors = [seen["factors"][0] for seen in by_rank]
    if max(factors) - min(factors) > 1e-4:
        raise Wrong(f"{where}, the ranks still hold different gradients: write the reduced values back into each.")
    if abs(factors[0] - 1) > 1e-4:
        raise Wrong(
            f"{where}, every gradient is {factors[0]:.3g} times the mean over the ranks: an all-reduce adds up, so "
            "divide its sum by the world size, once."
        )
    if any(seen["frozen_got_gradient"] for seen in by_rank):
        raise Wrong(f"{where}, a frozen parameter has got a gradient: leave those alone whose .grad is None.")


def check_scale_loss(scale_loss: Callable) -> Checked:
    """`scale_loss(loss_sum, tokens)` gives a loss whose mean over the ranks is the mean over all tokens."""
    return checked(
        lambda: _check_scale_loss(scale_loss),
        "fill in scale_loss(loss_sum, tokens): what this rank has to call backward() on.",
    )


def _check_scale_loss(scale_loss: Callable) -> str:
    for ranks in (2, 3):
        by_rank = launch(_scale_here, scale_loss, world_size=ranks, device="cpu", timeout=SECONDS).by_rank
        _judge_scale(by_rank, ranks)
    return "the mean over the ranks is the mean over all tokens, in the loss and in its gradient, whoever has how many."


def _scale_here(scale_loss: Callable) -> dict:
    """Rank r has (r + 1)² tokens, each with a loss of r + 1."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    tokens, weight = (rank + 1) ** 2, torch.ones((), requires_grad=True)
    loss_sum = weight * (rank + 1.0) * tokens
    scaled = attempt(scale_loss, loss_sum, torch.tensor(tokens))
    if isinstance(scaled, torch.Tensor) and scaled.requires_grad:
        scaled.backward()
    return {
        "sum": float(loss_sum.detach()),
        "tokens": tokens,
        "scaled": float(scaled),
        "gradient": None if weight.grad is None else float(weight.grad),
    }


def _judge_scale(by_rank: list[dict], ranks: int) -> None:
    def over(name: str) -> float:
        return sum(seen[name] for seen in by_rank)

    where = f"with {ranks} ranks that hold {' and '.join(str(seen['tokens']) for seen in by_rank)} tokens"
    token_mean, mean_of_means = over("sum") / over("tokens"), sum(s["sum"] / s["tokens"] for s in by_rank) / ranks
    got = over("scaled") / ranks
    if _equal(got, token_mean):
        if any(seen["gradient"] is None for seen in by_rank):
            raise Wrong(
                f"{where}, the number is right, and no gradient flows through it: stay with tensors, no .item()."
            )
        if not _equal(over("gradient") / ranks, token_mean):
            raise Wrong(f"{where}, the loss is right and its gradient is not: scale the loss itself, not a copy of it.")
        return
    if _equal(got, mean_of_means):
        cause = "that is the mean of the ranks' own means. Divide by the tokens of all ranks"
    elif _equal(got * ranks, token_mean):
        cause = (
            "that is too small by the number of ranks, since DDP takes a mean, not a sum. Scale it up by the world size"
        )
    elif _equal(got, over("sum") / ranks):
        cause = "the sums were not divided by the number of tokens"
    else:
        cause = "start from loss_sum / (tokens of all ranks)"
    raise Wrong(
        f"{where}, the mean over the ranks is {got:.3g} and the mean over all tokens {token_mean:.3g}: {cause}."
    )


def check_all_reduced_bytes(all_reduced_bytes: Callable, model: str = "pocket-moe") -> Checked:
    """`all_reduced_bytes(model)` predicts what DDP all-reduces in one step: held against the count of a real one."""
    return checked(
        lambda: _check_all_reduced_bytes(all_reduced_bytes, model),
        "fill in all_reduced_bytes(model): how many bytes DDP all-reduces in one step.",
    )


def _check_all_reduced_bytes(all_reduced_bytes: Callable, model: str) -> str:
    counted = 0
    for name, frozen in ((model, False), (model, True)):  # with a frozen embedding: not in the notebook
        seen = launch(
            _count_here, all_reduced_bytes, name, frozen, world_size=2, device="cpu", timeout=SECONDS
        ).by_rank[0]
        _judge_bytes(seen, f"{name}, its embedding frozen" if frozen else name)
        counted = counted or seen["counted"]
    return f"{model} all-reduces {counted:,} bytes in a step, as you said; frozen parameters travel in none."


def _count_here(all_reduced_bytes: Callable, name: str, frozen: bool) -> dict:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from hfscale.models import load_model
    from hfscale.profiling.traffic import TrafficCounter

    model = load_model(name)
    model.get_input_embeddings().requires_grad_(not frozen)
    predicted = attempt(all_reduced_bytes, model)
    copies = DistributedDataParallel(model)
    ids = torch.arange(16).reshape(1, 16)
    with TrafficCounter({}) as traffic:
        copies(input_ids=ids, labels=ids).loss.backward()
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    return {
        "predicted": _number(predicted),
        "counted": sum(row["bytes"] for row in traffic.rows() if row["collective"] == "all-reduce"),
        "numbers": sum(p.numel() for p in trained),
        "all_bytes": sum(p.numel() * p.element_size() for p in parameters),
    }


def _judge_bytes(seen: dict, what: str) -> None:
    predicted, counted = seen["predicted"], seen["counted"]
    if predicted == counted:
        return
    if predicted == seen["numbers"]:
        cause = "that is how many numbers there are; each is a float32 of 4 bytes"
    elif predicted == 2 * seen["numbers"]:
        cause = "that is 2 bytes for each number. The checkpoint is stored in bf16, and trained in float32"
    elif predicted == seen["all_bytes"]:
        cause = "a frozen parameter has no gradient, so that nothing of it travels"
    elif predicted == 2 * counted:
        cause = "count each gradient once: the kit counts what the tensor holds, not what goes over the wire"
    else:
        cause = "each gradient is as large as its parameter, and is all-reduced once"
    raise Wrong(f"{what}: you said {predicted:,} bytes, a real step all-reduced {counted:,}: {cause}.")


def _number(value: Any) -> int | float:
    number = float(value)
    return int(number) if number.is_integer() else number


def _equal(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-4 * max(abs(a), abs(b), 1e-12)
