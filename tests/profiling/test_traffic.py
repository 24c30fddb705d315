"""Counted bytes against closed forms, for collectives called by hand and for a training step."""

import pytest


def counted(kind):
    """Payload of one call on 2 ranks, with tensors of 1,000 fp32 numbers per rank."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    from hfscale.profiling.traffic import TrafficCounter

    world = dist.get_world_size()
    x = torch.ones(1000)
    calls = {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.empty(world * 1000), x),
        "all_gather": lambda: dist.all_gather([torch.empty(1000) for _ in range(world)], x),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.empty(1000), torch.ones(world * 1000)),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(1000), x),
        "all_to_all_single, nothing to send": lambda: dist.all_to_all_single(
            torch.empty(1000 if dist.get_rank() == 0 else 0),
            torch.ones(0 if dist.get_rank() == 0 else 1000),
            [0, 1000] if dist.get_rank() == 0 else [0, 0],
            [0, 0] if dist.get_rank() == 0 else [1000, 0],
        ),
        "functional all_reduce": lambda: functional.all_reduce(x, "sum", dist.group.WORLD).sum(),
        "functional all_gather": lambda: functional.all_gather_tensor(x, 0, dist.group.WORLD).sum(),
        "functional reduce_scatter": lambda: functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD).sum(),
        "barrier": dist.barrier,
        "nothing": lambda: x @ x,
    }
    with TrafficCounter({dist.group.WORLD.group_name: ["tp"]}) as traffic:
        calls[kind]()
    return traffic.rows()


@pytest.mark.parametrize(
    ("kind", "collective", "numbers"),
    [
        ("all_reduce", "all-reduce", 1000),
        ("broadcast", "broadcast", 1000),
        ("all_gather_into_tensor", "all-gather", 2000),
        ("all_gather", "all-gather", 2000),
        ("reduce_scatter_tensor", "reduce-scatter", 2000),
        ("all_to_all_single", "all-to-all", 1000),
        ("functional all_reduce", "all-reduce", 1000),
        ("functional all_gather", "all-gather", 2000),
        ("functional reduce_scatter", "reduce-scatter", 1000),
    ],
)
def test_bytes_are_those_of_the_full_size_side(ranks, kind, collective, numbers):
    expected = [{"collective": collective, "axis": "tp", "count": 1, "bytes": 4 * numbers}]
    assert ranks(counted, kind).by_rank == [expected, expected]


def test_an_all_to_all_counts_what_a_rank_sends_not_what_it_receives(ranks):
    rows = ranks(counted, "all_to_all_single, nothing to send").by_rank
    assert [row["bytes"] for (row,) in rows] == [0, 4000]


@pytest.mark.parametrize("kind", ["barrier", "nothing"])
def test_what_moves_no_payload_is_not_counted(ranks, kind):
    assert ranks(counted, kind).by_rank == [[], []]


def one_step(strategy):
    """Traffic of one forward and backward pass of pocket-llama on 2 x 16 tokens per rank."""
    import torch
    from transformers import AutoModelForCausalLM

    from hfscale.models import resolve
    from hfscale.profiling.traffic import TrafficCounter, mesh_axes
    from hfscale.strategy import Strategy

    model = Strategy.parse(strategy).load(AutoModelForCausalLM, resolve("pocket-llama"), dtype=torch.float32)
    parameters = sum(p.numel() for p in model.parameters())
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if strategy.startswith("ddp") else model
    ids = torch.arange(32).view(2, 16)
    with TrafficCounter(mesh_axes(model)) as traffic:
        wrapped(input_ids=ids, labels=ids).loss.backward()
    return {(row["collective"], row["axis"]): (row["count"], row["bytes"]) for row in traffic.rows()}, parameters


def test_ddp_reduces_exactly_its_gradients(ranks):
    rows, parameters = ranks(one_step, "ddp=2").by_rank[0]
    assert rows["all-reduce", "ddp"][1] == 4 * parameters


def test_fsdp_gathers_and_reduces_every_parameter(ranks):
    rows, _ = ranks(one_step, "fsdp=2").by_rank[0]
    embedding, layers = 4 * 2048 * 128, 4 * 4 * (4 * 128 * 128 + 3 * 128 * 344 + 2 * 128)
    # The embedding is tied to the head, and travels once for each of its two uses. Backward gathers the layers once
    # more, which forward has freed.
    whole = embedding + layers + 4 * 128 + embedding
    assert rows["all-gather", "fsdp"][1] == whole + layers
    assert rows["reduce-scatter", "fsdp"][1] == whole


def test_tp_moves_activations_by_the_closed_form(ranks):
    rows, _ = ranks(one_step, "tp=2").by_rank[0]
    layers, residual, logits = 4, 4 * 2 * 16 * 128, 4 * 2 * 16 * 2048
    # Forward: one sum after attention, one after the MLP, one for the embedding. Backward: q, k, v, gate, up, and the
    # head.
    forward, backward = (2 * layers + 1) * residual, (5 * layers + 1) * residual
    embedding_gradient = rows["all-reduce", "tp"][1] - forward - backward
    assert embedding_gradient in (0, 4 * 2048 * 128)
    assert rows["all-gather", "tp"][1] >= logits
