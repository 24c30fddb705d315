"""The exercises of 06_ddp: stubs, solutions, and the mistakes that people make."""

import time

import pytest
import torch
import torch.distributed as dist

from hfscale.exercises import ddp
from hfscale.exercises.solutions import ddp as solutions

pytestmark = pytest.mark.usefixtures("no_leftovers")
CHECKS = {
    "average_gradients": ddp.check_average_gradients,
    "scale_loss": ddp.check_scale_loss,
    "all_reduced_bytes": ddp.check_all_reduced_bytes,
}


def raises(*arguments):
    raise NotImplementedError


def only_dots(*arguments): ...


@pytest.mark.parametrize("stub", [raises, only_dots])
@pytest.mark.parametrize("name", CHECKS)
def test_a_stub_neither_passes_nor_crashes(name, stub):
    result = CHECKS[name](stub)
    assert result.done is None and f"fill in {name}(" in result.message


@pytest.mark.parametrize("name", CHECKS)
def test_the_solution_passes(name):
    result = CHECKS[name](getattr(solutions, name))
    assert result.done, result


# -- average_gradients --------------------------------------------------------------------------------------------


def does_nothing(model):
    list(model.parameters())


def sums(model):
    for parameter in (p for p in model.parameters() if p.grad is not None):
        dist.all_reduce(parameter.grad)


def halves(model):
    for parameter in (p for p in model.parameters() if p.grad is not None):
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2


def one_by_one(model):
    for parameter in (p for p in model.parameters() if p.grad is not None):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def forgets_frozen(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def gives_gradients_to_frozen(model):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    solutions.average_gradients(model)


def only_the_first(model):
    solutions.average_gradients(next(iter(model)))


def one_rank_only(model):
    if dist.get_rank() == 0:
        solutions.average_gradients(model)


def one_rank_late(model):
    if dist.get_rank() == 1:
        time.sleep(60)
    solutions.average_gradients(model)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (does_nothing, "with 2 ranks, the ranks still hold different gradients"),
        (sums, "every gradient is 2 times the mean over the ranks: an all-reduce adds up"),
        (halves, "with 3 ranks, every gradient is 1.5 times the mean"),
        (one_by_one, "it took 4 all-reduces: put them into one bucket"),
        (forgets_frozen, "your function failed on rank"),
        (gives_gradients_to_frozen, "a frozen parameter has got a gradient"),
        (only_the_first, "some of rank 0's gradients are 1 times the mean over the ranks and others 0.667 times"),
    ],
)
def test_wrong_averages_are_told_what_is_wrong(answer, sentence):
    result = ddp.check_average_gradients(answer)
    assert result.done is False and sentence in result.message, result


def test_a_collective_on_one_rank_is_told_so():
    result = ddp.check_average_gradients(one_rank_only)
    assert result.done is False
    assert "Rank 1 had already returned, while rank 0 was waiting for it in a collective" in result.message, result
    assert result.message.endswith(": solutions.average_gradients(model)")


def test_an_answer_that_hangs_is_ended_and_told_so(monkeypatch):
    monkeypatch.setattr(ddp, "SECONDS", 2.0)
    result = ddp.check_average_gradients(one_rank_late)
    assert result.done is False
    assert "your function: No result after 2 s, so all ranks were ended: rank 0 was in average_gradients" in (
        result.message
    )
    assert "rank 1 was in one_rank_late" in result.message


# -- scale_loss ---------------------------------------------------------------------------------------------------


def own_mean(loss_sum, tokens):
    return loss_sum / tokens


def forgets_the_world_size(loss_sum, tokens):
    return solutions.scale_loss(loss_sum, tokens) / dist.get_world_size()


def made_for_two(loss_sum, tokens):
    return forgets_the_world_size(loss_sum, tokens) * 2


def unchanged(loss_sum, tokens):
    return loss_sum


def a_plain_number(loss_sum, tokens):
    return solutions.scale_loss(loss_sum, tokens).item()


def a_wrong_gradient(loss_sum, tokens):
    right = solutions.scale_loss(loss_sum, tokens)
    return right.detach() + loss_sum - loss_sum.detach()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            own_mean,
            "with 2 ranks that hold 1 and 4 tokens, the mean over the ranks is 1.5 and the mean over all tokens 1.8",
        ),
        (own_mean, "that is the mean of the ranks' own means"),
        (forgets_the_world_size, "too small by the number of ranks"),
        (made_for_two, "with 3 ranks that hold 1 and 4 and 9 tokens"),
        (unchanged, "the sums were not divided by the number of tokens"),
        (a_plain_number, "no gradient flows through it"),
        (a_wrong_gradient, "the loss is right and its gradient is not"),
    ],
)
def test_wrong_scales_are_told_what_is_wrong(answer, sentence):
    result = ddp.check_scale_loss(answer)
    assert result.done is False and sentence in result.message, result


# -- all_reduced_bytes --------------------------------------------------------------------------------------------


def parameters_not_bytes(model):
    return sum(p.numel() for p in model.parameters())


def as_stored(model):
    return 2 * parameters_not_bytes(model)


def frozen_too(model):
    return 4 * parameters_not_bytes(model)


def both_directions(model):
    return 2 * solutions.all_reduced_bytes(model)


def only_busy_experts(model):
    experts = sum(p.numel() for name, p in model.named_parameters() if "experts" in name)
    return 4 * (parameters_not_bytes(model) - experts * 6 // 8)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (parameters_not_bytes, "each is a float32 of 4 bytes"),
        (as_stored, "stored in bf16, and trained in float32"),
        (frozen_too, "pocket-moe, its embedding frozen: you said"),
        (frozen_too, "a frozen parameter has no gradient"),
        (both_directions, "count each gradient once"),
        (only_busy_experts, "each gradient is as large as its parameter"),
    ],
)
def test_wrong_bytes_are_told_what_is_wrong(answer, sentence):
    result = ddp.check_all_reduced_bytes(answer)
    assert result.done is False and sentence in result.message, result
