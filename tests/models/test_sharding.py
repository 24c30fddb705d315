"""The plan's arithmetic, held against what ranks really hold after loading."""

import pytest

from hfscale.models.sharding import ParameterSpec, parameter_specs, planned_bytes, planned_shape
from hfscale.strategy import Strategy


def held_bytes(model, strategy):
    import torch
    from transformers import AutoModelForCausalLM

    from hfscale.models import resolve
    from hfscale.strategy import Strategy
    from hfscale.training.snapshots import local_bytes

    return local_bytes(Strategy.parse(strategy).load(AutoModelForCausalLM, resolve(model), dtype=torch.float32))


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("pocket-llama", "ddp=2"),
        ("pocket-llama", "fsdp=3"),
        ("pocket-llama", "fsdp=2,tp=2"),
        ("pocket-moe", "tp=2"),
        ("pocket-moe", "ep=2"),
        ("pocket-moe", "fsdp=2,tp=2,ep=4"),
    ],
)
def test_ranks_hold_what_the_plan_says_to_the_byte(ranks, model, strategy):
    layout = Strategy.parse(strategy)
    held = ranks(held_bytes, model, strategy, world_size=layout.world_size).by_rank
    planned = [planned_bytes(parameter_specs(model), layout, rank) for rank in range(layout.world_size)]
    assert held == planned
    whole = planned_bytes(parameter_specs(model), Strategy(), 0)
    assert all((share < whole) == layout.is_sharded for share in planned)


def test_uneven_sizes_are_cut_like_torch_chunk():
    spec = ParameterSpec("weight", (10, 4), "colwise", False)
    assert [planned_shape(spec, Strategy(tp=4), rank)[0] for rank in range(4)] == [3, 3, 3, 1]
    assert [planned_shape(spec, Strategy(fsdp=8), rank)[0] for rank in range(8)] == [2, 2, 2, 2, 2, 0, 0, 0]
    packed = ParameterSpec("gate_up", (2, 20, 4), "packed_colwise", False)
    assert [planned_shape(packed, Strategy(tp=4), rank)[1] for rank in range(4)] == [6, 6, 6, 2]


def test_biases_follow_their_matrix():
    assert planned_shape(ParameterSpec("bias", (8,), "colwise", False), Strategy(tp=2), 0) == (4,)
    assert planned_shape(ParameterSpec("bias", (8,), "rowwise", False), Strategy(tp=2), 0) == (8,)
    assert planned_shape(ParameterSpec("norm", (8,), None, False), Strategy(tp=2), 0) == (8,)
