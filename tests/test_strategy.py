"""Strategy strings, their sizes, and which models can be laid out that way."""

import pytest
from transformers import AutoConfig

from hfscale.errors import HfscaleError
from hfscale.strategy import Strategy

LLAMA = AutoConfig.for_model("llama", num_attention_heads=4, num_key_value_heads=4)
GROUPED = AutoConfig.for_model("llama", hidden_size=576, num_attention_heads=9, num_key_value_heads=3)
MOE = AutoConfig.for_model("qwen3_moe", num_attention_heads=4, num_key_value_heads=4, num_experts=8)
NO_PLAN = AutoConfig.for_model("gpt2")


@pytest.mark.parametrize(
    ("text", "world_size", "data_ranks", "canonical"),
    [
        ("single", 1, 1, "single"),
        ("ddp=2", 2, 2, "ddp=2"),
        ("fsdp=4", 4, 4, "fsdp=4"),
        ("tp=2", 2, 1, "tp=2"),
        (" FSDP=2 , tp=2 ", 4, 2, "fsdp=2,tp=2"),
        ("tp=2,ddp=2", 4, 2, "ddp=2,tp=2"),
        ("ddp=2,fsdp=2", 4, 4, "ddp=2,fsdp=2"),
        ("ep=2", 2, 2, "ep=2"),
        ("fsdp=2,ep=2", 2, 2, "ep=2"),
        ("tp=2,ep=2", 2, 1, "tp=2,ep=2"),
        ("tp=2,ep=4", 4, 2, "tp=2,ep=4"),
        ("fsdp=4,ep=2", 4, 4, "fsdp=4,ep=2"),
        ("ddp=1", 1, 1, "single"),
    ],
)
def test_sizes(text, world_size, data_ranks, canonical):
    strategy = Strategy.parse(text)
    assert (strategy.world_size, strategy.data_ranks, str(strategy)) == (world_size, data_ranks, canonical)
    assert Strategy.parse(str(strategy)) == strategy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=2,tp=4", "names tp twice"),
        ("tp", "needs a number of ranks from 1, such as tp=2"),
        ("tp=0", "needs a number of ranks from 1"),
        ("tp=-2", "needs a number of ranks from 1"),
        ("tp=two", "needs a number of ranks from 1"),
        ("tp=2.0", "needs a number of ranks from 1"),
        ("dp=2", r"did you mean ddp\?"),
        ("pp=2", "pipeline parallelism"),
        ("single,tp=2", "'single' stands alone"),
        ("", "expected text such as"),
        (None, "expected text such as"),
        ("tp=2,ep=3", "ep=3 is not a multiple of tp=2"),
        ("fsdp=2,ep=4", "ep=4 does not divide fsdp x tp = 2"),
    ],
)
def test_wrong_strings_are_answered_in_a_sentence(text, message):
    with pytest.raises(HfscaleError, match=message):
        Strategy.parse(text)


@pytest.mark.parametrize(
    ("text", "config", "message"),
    [
        ("tp=3", LLAMA, "use tp=1, 2 or 4"),
        ("tp=2", GROUPED, "use tp=1 or 3"),
        ("ep=2", LLAMA, "dense model"),
        ("ep=3", MOE, "use ep=1, 2, 4 or 8"),
        ("tp=2", NO_PLAN, "needs a tensor-parallel plan"),
    ],
)
def test_layouts_that_a_model_cannot_take_are_refused_with_the_legal_ones(text, config, message):
    with pytest.raises(HfscaleError, match=message):
        Strategy.parse(text).check(config, "my-model")


@pytest.mark.parametrize(
    ("text", "config"), [("tp=3", GROUPED), ("tp=4", LLAMA), ("ep=8", MOE), ("tp=2,ep=2", MOE), ("ddp=2", NO_PLAN)]
)
def test_layouts_that_a_model_can_take_pass(text, config):
    Strategy.parse(text).check(config)


def test_plain_ddp_needs_no_distributed_config_and_everything_else_gets_its_sizes():
    assert Strategy.parse("single").distributed_config() is None
    assert Strategy.parse("ddp=2").distributed_config() is None
    config = Strategy.parse("ddp=2,tp=2").distributed_config()
    assert (config.dp_replicate_size, config.fsdp_size, config.tp_size, config.ep_size) == (2, 1, 2, 1)
    config = Strategy.parse("ep=2").distributed_config()
    assert (config.dp_replicate_size, config.fsdp_size, config.tp_size, config.ep_size) == (1, 2, 1, 2)


def test_mesh_text_shows_every_rank_once_and_the_rows_that_it_reads():
    text = Strategy.parse("fsdp=2,tp=2").mesh_text(global_batch=16)
    assert [text.count(f"rank {rank} ") for rank in range(4)] == [1, 1, 1, 1]
    assert "reads rows 0 to 7 of 16" in text
    assert "reads rows 8 to 15 of 16" in text
    assert Strategy.parse("ep=2").mesh_text().endswith("rank 0: share 0 of 2, rank 1: share 1 of 2")
    assert Strategy.parse("single").mesh_text().startswith("single: 1 rank, 1 data rank")


def test_load_refuses_the_wrong_number_of_ranks():
    with pytest.raises(HfscaleError, match="needs 2 ranks and 1 take part"):
        Strategy.parse("tp=2").load(None, "anything")
