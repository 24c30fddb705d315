"""Parity: every strategy trains the same model; and the check sees the faults that it exists for."""

from pathlib import Path

import pytest

import hfscale as hs
from hfscale import Recipe, ScaleTrainer
from hfscale.checking.compare import compare
from hfscale.errors import HfscaleError, LaunchError

pytestmark = pytest.mark.usefixtures("no_leftovers")
GARDEN = str(Path(__file__).parents[1] / "fixtures" / "garden.txt")
DENSE = Recipe(model="pocket-llama", data=GARDEN, global_batch=8, seq_len=64, steps=3, device="cpu")
MOE = DENSE.with_(model="pocket-moe")


def assert_all_agree(comparison):
    assert comparison.ok, str(comparison)
    assert {row.verdict for row in comparison.rows} == {"reference", "agrees"}
    for row in comparison.rows[1:]:
        assert row.max_loss_difference <= 1e-5
        assert row.max_gradient_difference <= 1e-4


def test_dense_strategies_train_the_same_model():
    assert_all_agree(compare(DENSE, strategies=["ddp=2", "fsdp=2", "tp=2", "fsdp=2,tp=2", "ddp=2,tp=2"]))


def test_expert_strategies_train_the_same_model():
    assert_all_agree(compare(MOE, strategies=["ep=2", "tp=2,ep=2", "ddp=2"]))


@pytest.mark.parametrize("recipe", [DENSE, MOE], ids=["dense", "moe"])
def test_with_accumulation_and_a_last_window_that_is_not_full(recipe):
    """19 samples in windows of 8: the third window has 3 samples, one of its micro-batches is empty on some ranks."""
    recipe = recipe.with_(gradient_accumulation=2, train_samples=19, steps=4)
    assert_all_agree(compare(recipe, strategies=["ddp=2", "tp=2"]))


@pytest.mark.parametrize("samples", [1, 7, 9, 24])
def test_datasets_of_one_sample_to_three_global_batches(samples):
    assert_all_agree(compare(DENSE.with_(train_samples=samples, seq_len=32), strategies=["ddp=2"]))


@pytest.mark.parametrize("strategy", ["fsdp=3", "ddp=2,fsdp=2"])
def test_shards_of_uneven_size_and_hybrid_sharding(strategy):
    """2,048 rows of a tied embedding do not divide by three."""
    assert_all_agree(compare(DENSE.with_(global_batch=12), strategies=strategy))


def test_ddp_that_looks_for_unused_parameters_moves_more_than_gradients_and_agrees():
    arguments = {"ddp_find_unused_parameters": True}
    assert hs.check_parity(DENSE.with_(strategy="ddp=2", steps=2, training_arguments=arguments)).ok


def test_bf16_strategies_agree_within_their_own_bounds():
    assert compare(DENSE.with_(precision="bf16"), strategies=["ddp=2", "tp=2"]).ok


class SumForMean(ScaleTrainer):
    """Seeded fault: the loss is summed over the data ranks, where it should be averaged."""

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return loss * self.data_parallel[0]


class MeanPerRank(ScaleTrainer):
    """Seeded fault: each rank takes the mean over its own tokens, and ranks are averaged."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs).loss


class NeverReduced(ScaleTrainer):
    """Seeded fault: the gradients of the ranks are never averaged."""

    def training_step(self, model, *args, **kwargs):
        if not hasattr(model, "no_sync"):
            return super().training_step(model, *args, **kwargs)
        with model.no_sync():
            return super().training_step(model, *args, **kwargs)


class FailsInTheSecondWorld(ScaleTrainer):
    """Works on one device; where there are more it raises in its first step, when the first snapshot is written."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        if self.args.world_size > 1:
            raise ValueError("on purpose")
        return loss


def replicate_instead_of_sharding():
    """Seeded fault: transformers is asked for tensor parallelism and applies no plan at all."""
    from transformers.distributed import mixin

    mixin.apply_tensor_parallelism = lambda model, mesh, plan: model


def leave_the_mlps_whole():
    """Seeded fault: half of the plan is lost."""
    from transformers import LlamaConfig

    plan = LlamaConfig.base_model_tp_plan
    LlamaConfig.base_model_tp_plan = {name: style for name, style in plan.items() if "mlp" not in name}


@pytest.mark.parametrize(
    ("fault", "words", "suspect"),
    [
        (SumForMean, "differs: loss", "a sum where a mean belongs"),
        (MeanPerRank, "differs: loss", "a mean per rank"),
        (NeverReduced, "differs: gradients not averaged", "mean per rank or per batch"),
    ],
)
def test_faults_in_a_trainer_are_seen_and_named(fault, words, suspect):
    parity = hs.check_parity(DENSE.with_(strategy="ddp=2"), trainer_class=fault)
    assert not parity.ok
    assert parity.verdict == words, str(parity)
    assert suspect in parity.suspect


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (replicate_instead_of_sharding, "differs: not sharded"),
        (leave_the_mlps_whole, "differs: not sharded as planned"),
    ],
)
def test_a_model_that_silently_stays_whole_agrees_in_every_number_and_is_reported(fault, verdict):
    parity = hs.check_parity(DENSE.with_(strategy="tp=2"), setup=fault)
    assert all(row.ok for row in parity.rows), "the fault is silent: every number agrees"
    assert parity.verdict == verdict
    assert "parameter bytes per rank" in parity.reason


def test_a_correct_strategy_says_how_close_it_came_to_its_bounds():
    parity = hs.check_parity(DENSE.with_(strategy="tp=2"))
    assert parity.ok
    assert parity.verdict == "agrees"
    assert parity.gradients == 1_053_824
    assert [row.name for row in parity.rows] == ["loss", "gradient norm", "gradients", "final parameters"]
    assert 0 < parity.worst.worst <= parity.worst.bound
    assert "tp=2 against single: agrees" in str(parity)


def perturb_rank_one():
    """A rank that starts from other weights, as when one machine has another file in its cache."""
    import torch.distributed as dist

    from hfscale.strategy import Strategy

    plain = Strategy.load

    def load(self, *args, **kwargs):
        model, loading_info = plain(self, *args, **kwargs)
        if dist.get_rank() == 1:
            next(model.parameters()).data[0, 0] += 1e-6
        return model, loading_info

    Strategy.load = load


def other_arguments_on_rank_one():
    import torch.distributed as dist

    from hfscale.recipe import Recipe

    plain = Recipe.as_training_arguments
    extra = {"weight_decay": 0.5} if dist.get_rank() == 1 else {}
    Recipe.as_training_arguments = lambda self: {**plain(self), **extra}


@pytest.mark.parametrize(
    ("setup", "what"),
    [
        (perturb_rank_one, "the initial weights of model.embed_tokens.weight: digest"),
        (other_arguments_on_rank_one, "the TrainingArguments' weight_decay: 0.5 instead of 0.0"),
    ],
)
def test_ranks_that_start_differently_end_before_the_first_step(setup, what):
    with pytest.raises(LaunchError, match=f"rank 1 disagrees with the others about {what}") as caught:
        hs.run(DENSE.with_(strategy="ddp=2"), setup=setup)
    assert caught.value.rank in (0, 1)  # both say so
    folder = Path(caught.value.log_path).parent
    assert hs.open_run(folder).losses == []


def test_wrong_uses():
    with pytest.raises(HfscaleError, match="nothing to compare"):
        hs.check_parity(DENSE)
    with pytest.raises(HfscaleError, match="nothing to compare"):
        hs.check_parity(DENSE.with_(strategy="tp=2"), " TP=2")
    with pytest.raises(HfscaleError, match="check_parity needs a Recipe"):
        hs.check_parity("pocket-llama")
    with pytest.raises(HfscaleError, match="use tp=1, 2 or 4"):
        hs.check_parity(DENSE.with_(strategy="tp=3"))
    with pytest.raises(HfscaleError, match="compare needs a Recipe"):
        compare("pocket-llama")


def test_a_strategy_that_the_model_cannot_take_is_a_refused_row():
    comparison = compare(DENSE.with_(steps=1), strategies=["ddp=2", "tp=3"])
    assert [row.verdict for row in comparison.rows] == ["reference", "agrees", "refused"]
    assert "use tp=1, 2 or 4" in comparison.rows[2].reason
    assert comparison.ok
    assert comparison.to_dict()["rows"][2]["losses"] == []


def test_snapshots_are_removed_once_compared_or_failed():
    hs.check_parity(DENSE.with_(strategy="ddp=2", steps=1))
    with pytest.raises(LaunchError):
        hs.check_parity(DENSE.with_(strategy="ddp=2", steps=1), setup=perturb_rank_one)
    comparison = compare(DENSE.with_(steps=1), strategies="ddp=2", trainer_class=FailsInTheSecondWorld)
    assert [row.verdict for row in comparison.rows] == ["reference", "differs"]
    assert "the run failed: ValueError: on purpose" in comparison.rows[1].reason
    folders = [run.folder for run in hs.runs()]
    assert len(folders) == 6
    assert not [path for folder in folders for path in folder.glob("*.safetensors")]
