"""The step written by hand, held equal to ScaleTrainer, which is what trains in earnest."""

from pathlib import Path

import pytest

import hfscale as hs
from hfscale import Recipe

pytestmark = pytest.mark.usefixtures("no_leftovers")
GARDEN = str(Path(__file__).parents[1] / "fixtures" / "garden.txt")
RECIPE = Recipe(data=GARDEN, global_batch=8, seq_len=64, steps=4, eval_samples=0, device="cpu")


def train_by_hand(recipe):
    """The recipe's steps with `by_hand.train`, on the batches that ScaleTrainer would take."""
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM

    from hfscale.data.batching import GlobalBatches, MaskFiller, WithFiller
    from hfscale.data.collating import CausalCollator
    from hfscale.data.sources import load_passages
    from hfscale.data.tokenising import tokenise
    from hfscale.models import load_tokenizer, resolve
    from hfscale.training import by_hand

    strategy = recipe.parsed_strategy
    model = strategy.load(AutoModelForCausalLM, resolve(recipe.model), dtype=torch.float32)
    tokenizer = load_tokenizer(recipe.model)
    rows = WithFiller(tokenise(load_passages(recipe.data)["train"], tokenizer, recipe.seq_len))
    data_rank = strategy.data_rank(dist.get_rank())
    order = GlobalBatches(len(rows), recipe.per_device_batch, strategy.data_ranks, data_rank, recipe.seed)
    collate = MaskFiller(CausalCollator(tokenizer.pad_token_id))
    batches = [collate([rows[i] for i in indices]) for indices, _ in zip(order, range(recipe.steps), strict=False)]
    kind = "ddp" if strategy.ddp > 1 else "fsdp" if strategy.fsdp > 1 else "single"
    return by_hand.train(model, batches, recipe.learning_rate, strategy.data_ranks, kind)


@pytest.mark.parametrize("strategy", ["single", "ddp=2", "fsdp=2"])
def test_by_hand_equals_the_trainer(ranks, strategy):
    recipe = RECIPE.with_(strategy=strategy)
    trained = hs.run(recipe).losses
    by_hand = ranks(train_by_hand, recipe, world_size=recipe.parsed_strategy.world_size).by_rank
    assert all(losses == pytest.approx(trained, abs=1e-5) for losses in by_hand)
    assert trained[-1] < trained[0]


def test_evaluation_before_and_after_computes_in_the_same_precision(run_root, no_leftovers):
    still = RECIPE.with_(precision="bf16", learning_rate=0.0, steps=1, eval_samples=8)
    (rank,) = hs.run(still).result["by_rank"]
    assert rank["evaluation"]["before"] == rank["evaluation"]["after"]
