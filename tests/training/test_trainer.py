"""ScaleTrainer in ordinary hands: a model, TrainingArguments and a dataset of one's own, without a recipe."""

import itertools

import pytest

ROWS = [{"input_ids": [3 + i, 5, 7 + i, 11, 13, 17][: 3 + i % 4]} for i in range(10)]


def train(strategy, rows=ROWS, changes=()):
    """Losses and evaluation loss of a short training, and what wraps the model; `changes` go to TrainingArguments."""
    import tempfile

    import torch
    from transformers import AutoModelForCausalLM, TrainingArguments

    from hfscale import ScaleTrainer, Strategy
    from hfscale.data.collating import CausalCollator
    from hfscale.models import resolve
    from hfscale.training.rank import _forget_the_launcher

    strategy = Strategy.parse(strategy)
    if strategy.world_size == 1:
        _forget_the_launcher()
    model = strategy.load(AutoModelForCausalLM, resolve("pocket-llama"), dtype=torch.float32)
    arguments = {
        "output_dir": tempfile.mkdtemp(),
        "use_cpu": True,
        "max_steps": 3,
        "per_device_train_batch_size": 4 // strategy.data_ranks,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 1,
        **dict(changes),
    }
    trainer = ScaleTrainer(
        model=model,
        args=TrainingArguments(**arguments),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=CausalCollator(0),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, trainer.evaluation_loss(), type(trainer.model_wrapped).__name__


@pytest.mark.parametrize("strategy", ["ddp=2", "fsdp=2", "tp=2"])
def test_it_trains_the_same_under_a_strategy_as_on_one_device(ranks, strategy):
    losses, evaluation, wrapper = ranks(train, "single", world_size=1).by_rank[0]
    assert wrapper == "LlamaForCausalLM", "a world of one needs no wrapper"
    results = ranks(train, strategy).by_rank
    assert results[0][:2] == results[1][:2]
    assert results[0][0] == pytest.approx(losses, abs=1e-5)
    assert results[0][1] == pytest.approx(evaluation, abs=1e-5)


def test_evaluation_weighs_tokens_not_batches(ranks):
    """The batch size must not matter, although rows have different lengths and the last batch is short."""
    still = {"max_steps": 1, "learning_rate": 0.0}
    large = ranks(train, "single", ROWS, {**still, "per_device_eval_batch_size": 8}, world_size=1)
    small = ranks(train, "single", ROWS, {**still, "per_device_eval_batch_size": 3}, world_size=1)
    assert small.by_rank[0][1] == pytest.approx(large.by_rank[0][1], abs=1e-6)


def test_a_stream_is_refused_with_advice(ranks):
    from hfscale.errors import LaunchError

    with pytest.raises(LaunchError, match="needs a dataset with a length"):
        ranks(train, "single", itertools.count, world_size=1)


def test_a_sampling_strategy_that_depends_on_ranks_is_refused(ranks):
    from hfscale.errors import LaunchError

    with pytest.raises(LaunchError, match="use 'random' or 'sequential'"):
        ranks(train, "single", ROWS, {"train_sampling_strategy": "group_by_length"}, world_size=1)
