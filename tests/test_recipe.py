"""Recipe: validation in sentences, JSON there and back, and what it means in TrainingArguments."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfscale.errors import HfscaleError
from hfscale.recipe import OWNERS, Recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": -1}, "steps is -1: expected a whole number of at least 1"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"seed": 2**32}, "seed is 4294967296: expected at most 4294967295"),
        ({"steps": True}, "steps is True"),
        ({"seq_len": 1}, "seq_len is 1"),
        ({"global_batch": 0}, "global_batch is 0"),
        ({"learning_rate": -1e-3}, "learning_rate is -0.001"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": "1e-3"}, "learning_rate is '1e-3'"),
        ({"train_samples": 0}, "train_samples is 0"),
        ({"precision": "fp8"}, "choose one of fp32, bf16"),
        ({"precision": "fp16", "device": "cpu"}, "silently train in fp32.*precision='bf16'"),
        ({"task": "poetry"}, "choose one of causal-lm"),
        ({"device": "tpu"}, "choose one of auto, cpu, cuda"),
        ({"model": ""}, "expected a non-empty text"),
        ({"model": 3}, "expected a non-empty text"),
        ({"strategy": "tp=2,tp=4"}, "names tp twice"),
        ({"strategy": "ddp=5", "global_batch": 4}, "cannot be shared by 5 data ranks.*multiple of 5, such as 5"),
        ({"strategy": "ddp=2", "gradient_accumulation": 3}, "multiple of 6, such as 12 or 18"),
        ({"training_arguments": {"bf16": True}}, "bf16, which follows from the recipe's field precision"),
        ({"training_arguments": {"max_steps": 3}}, "recipe's field steps"),
        ({"training_arguments": {"fsdp": "full_shard"}}, "recipe's field strategy"),
        ({"training_arguments": {"output_dir": "x"}}, "the run folder"),
        ({"training_arguments": {"warmup_steps": object()}}, "plain data"),
        ({"training_arguments": [1]}, "expected a dictionary"),
        ({"training_arguments": {1: 2}}, "expected names of TrainingArguments"),
        ({"training_arguments": {"push_to_hub": True}}, "not uploaded"),
    ],
)
def test_wrong_values_are_answered_in_a_sentence(changes, message):
    with pytest.raises(HfscaleError, match=message):
        Recipe(**changes)


def test_per_device_batch_counts_data_ranks_and_accumulation_but_not_tensor_ranks():
    assert Recipe(global_batch=16).per_device_batch == 16
    assert Recipe(global_batch=16, strategy="ddp=2", gradient_accumulation=2).per_device_batch == 4
    assert Recipe(global_batch=16, strategy="fsdp=2,tp=2").per_device_batch == 8
    assert Recipe(global_batch=16, strategy="tp=2,ep=2").per_device_batch == 16
    assert Recipe(global_batch=16, strategy="ep=2").per_device_batch == 8


def test_json_round_trip_keeps_every_field():
    recipe = Recipe(strategy="fsdp=2,tp=2", precision="bf16", train_samples=7, training_arguments={"warmup_steps": 3})
    assert Recipe.from_json(recipe.to_json()) == recipe


@given(
    st.builds(
        Recipe,
        strategy=st.sampled_from(["single", "ddp=2", "tp=2", "fsdp=2,tp=2", "tp=2,ep=2"]),
        global_batch=st.integers(1, 64).map(lambda n: 4 * n),
        steps=st.integers(1, 10**6),
        learning_rate=st.floats(0, 1, allow_nan=False),
        seed=st.integers(0, 2**31),
        eval_samples=st.none() | st.integers(0, 99),
    )
)
def test_json_round_trip_of_any_recipe(recipe):
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_a_file_without_a_field_means_its_default():
    assert Recipe.from_json('{"model": "pocket-moe"}') == Recipe(model="pocket-moe")


def test_files_are_read_and_refused_with_the_place(tmp_path):
    path = Recipe(steps=3).save(tmp_path / "recipe.json")
    assert Recipe.load(path) == Recipe(steps=3)
    path.write_text('{\n "steps": 3,\n}')
    with pytest.raises(HfscaleError, match=r"recipe.json is not valid JSON: .* in line 3"):
        Recipe.load(path)
    path.write_text("[1, 2]")
    with pytest.raises(HfscaleError, match="expected an object of fields"):
        Recipe.load(path)
    with pytest.raises(HfscaleError, match="no recipe file"):
        Recipe.load(tmp_path / "absent.json")
    path.write_text("\ufeff" + Recipe(steps=3).to_json(), encoding="utf-8")
    assert Recipe.load(path) == Recipe(steps=3), "a byte order mark is no part of the text"
    path.write_text("[" * 100_000)
    with pytest.raises(HfscaleError, match="nested too deeply"):
        Recipe.load(path)
    with pytest.raises(HfscaleError, match="cannot be read"):
        Recipe.load(tmp_path)
    with pytest.raises(HfscaleError, match="cannot be read"):
        Recipe.load("a\0b")


@pytest.mark.parametrize(
    ("key", "close"), [("stratgy", "strategy"), ("learning_rates", "learning_rate"), ("sep_len", "seq_len")]
)
def test_unknown_keys_are_answered_with_close_matches(key, close):
    with pytest.raises(HfscaleError, match=f"'{key}'.*Did you mean {close}"):
        Recipe.from_dict({key: 1})
    with pytest.raises(HfscaleError, match=f"'{key}'.*Did you mean {close}"):
        Recipe().with_(**{key: 1})


def test_with_changes_one_field_and_checks_it():
    recipe = Recipe()
    assert recipe.with_(strategy="tp=2").strategy == "tp=2"
    assert recipe.strategy == "single"
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.steps = 3
    with pytest.raises(HfscaleError):
        recipe.with_(steps=0)


def test_training_arguments_it_stands_for_are_what_transformers_builds(tmp_path):
    recipe = Recipe(
        strategy="ddp=2",
        gradient_accumulation=2,
        precision="bf16",
        steps=7,
        seed=3,
        training_arguments={"weight_decay": 0.1},
    )
    shown = recipe.as_training_arguments()
    built = recipe.build_training_arguments(tmp_path, "cpu")
    assert {name: getattr(built, name) for name in ("max_steps", "bf16", "seed", "weight_decay")} == {
        name: shown[name] for name in ("max_steps", "bf16", "seed", "weight_decay")
    }
    assert built.per_device_train_batch_size == 4
    assert built.gradient_accumulation_steps == 2
    assert built.average_tokens_across_devices
    json.dumps(shown)


def test_owned_arguments_exist_in_transformers():
    from transformers import TrainingArguments

    assert set(OWNERS) <= {f.name for f in dataclasses.fields(TrainingArguments)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "pocket-lama"}, "pocket-llama"),
        ({"data": "/nowhere/at/all.txt"}, "nowhere"),
        ({"strategy": "tp=3"}, "use tp=1, 2 or 4"),
        ({"strategy": "ep=2"}, "dense model"),
        ({"precision": "fp16"}, "precision='bf16'"),
        ({"seq_len": 100_000}, "seq_len=100000 is longer than"),
        ({"training_arguments": {"warm_up_steps": 3}}, "Did you mean warmup_steps"),
        ({"training_arguments": {"optim": "adamw_torhc"}}, "optim='adamw_torhc' is unknown; such as adamw_torch"),
        ({"training_arguments": {"lr_scheduler_type": "cosinus"}}, "such as cosine"),
        ({"training_arguments": {"weight_decay": "x"}}, "weight_decay='x' should be a number"),
        ({"training_arguments": {"max_grad_norm": None}}, "max_grad_norm=None should be a number"),
        ({"training_arguments": {"dataloader_num_workers": -2}}, "should be a whole number"),
        ({"training_arguments": {"full_determinism": "yes"}}, "should be True or False"),
        ({"training_arguments": {"train_sampling_strategy": "group_by_length"}}, "use 'random' or 'sequential'"),
        ({"training_arguments": {"dataloader_drop_last": True}}, "leave samples out"),
        ({"training_arguments": {"label_smoothing_factor": 0.1}, "strategy": "fsdp=2"}, "a wrong loss under 'fsdp=2'"),
        ({"training_arguments": {"save_strategy": "steps"}, "strategy": "tp=2"}, "add save_only_model=True"),
        ({"training_arguments": {"eval_strategy": "steps"}, "eval_samples": 0}, "needs evaluation data"),
    ],
)
def test_check_refuses_what_the_model_the_data_or_the_machine_cannot_do(changes, message):
    with pytest.raises(HfscaleError, match=message):
        Recipe(**changes).check()


def test_check_passes_what_can_run():
    Recipe(model="pocket-moe", strategy="tp=2,ep=2", training_arguments={"warmup_steps": 1}).check()
    arguments = {"optim": "sgd", "lr_scheduler_type": "cosine", "weight_decay": 0, "label_smoothing_factor": 0.1}
    Recipe(strategy="tp=2", training_arguments=arguments).check()
    Recipe(strategy="ddp=2", training_arguments={"save_strategy": "steps", "eval_strategy": "epoch"}).check()


def test_paths_are_taken_as_text(tmp_path):
    assert Recipe(data=tmp_path / "a.txt").data == str(tmp_path / "a.txt")
