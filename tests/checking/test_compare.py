"""Which rows a comparison has, and on which device they all run."""

import json
from pathlib import Path

import pytest

from hfscale import Recipe
from hfscale.checking import jobs
from hfscale.checking.compare import compare
from hfscale.checking.comparison import Comparison, Row
from hfscale.errors import HfscaleError

GARDEN = str(Path(__file__).parents[1] / "fixtures" / "garden.txt")


def rows(job):
    return [(recipe.model, strategy) for recipe, strategies in job for strategy in strategies]


def test_the_main_job_has_both_models_and_every_kind_of_strategy():
    assert rows(jobs.default_job()) == [
        ("pocket-llama", "single"),
        ("pocket-llama", "ddp=2"),
        ("pocket-llama", "fsdp=2"),
        ("pocket-llama", "tp=2"),
        ("pocket-llama", "fsdp=2,tp=2"),
        ("pocket-moe", "single"),
        ("pocket-moe", "ep=2"),
        ("pocket-moe", "tp=2,ep=2"),
    ]
    assert rows(jobs.comparison_job(None, None, steps=3)) == rows(jobs.default_job())


def test_options_choose_rows_and_single_always_comes_first():
    assert rows(jobs.comparison_job("pocket-moe", None)) == rows(jobs.default_job())[5:]
    assert rows(jobs.comparison_job(None, ["tp=2", "single", "tp=2"])) == rows(jobs.default_job())[0:4:3]
    assert rows(jobs.comparison_job("my-folder", None)) == [
        ("my-folder", "single"),
        ("my-folder", "ddp=2"),
        ("my-folder", "fsdp=2"),
    ]


def test_rows_for_more_ranks_than_gpus_send_all_rows_to_the_cpu(monkeypatch):
    from hfscale import hardware

    for gpus, device, noted in [(0, "cpu", False), (2, "cpu", True), (4, "cuda", False), (8, "cuda", False)]:
        monkeypatch.setattr(hardware, "cuda_devices", lambda gpus=gpus: gpus)
        monkeypatch.setattr(jobs, "cuda_devices", lambda gpus=gpus: gpus)
        job = jobs.default_job()
        assert {recipe.device for recipe, _ in jobs.settle(job)} == {device}
        note = jobs.device_note(job)
        assert bool(note) == noted
    monkeypatch.setattr(jobs, "cuda_devices", lambda: 2)
    assert jobs.device_note(jobs.default_job()) == (
        "All rows run on the CPU: the largest needs 4 GPUs and 2 GPUs can be used here."
    )
    assert jobs.device_note(jobs.default_job(device="cpu")) is None


def test_nothing_to_compare_is_refused_before_anything_starts():
    with pytest.raises(HfscaleError, match="use tp=1, 2 or 4"):
        compare(Recipe(), strategies=["tp=3", "ep=2"])
    with pytest.raises(HfscaleError, match="name one beside single"):
        compare(Recipe(), strategies=["single"])
    with pytest.raises(HfscaleError, match="compare needs a Recipe"):
        compare("pocket-llama")


def test_two_recipes_of_one_model_have_rows_of_their_own(run_root, no_leftovers):
    recipe = Recipe(data=GARDEN, steps=1, global_batch=4, seq_len=32, device="cpu")
    comparison = compare([recipe, recipe.with_(seed=1)], strategies="ddp=2")
    assert [row.verdict for row in comparison.rows] == ["reference", "agrees", "reference", "agrees"]
    assert comparison.rows[0].losses != comparison.rows[2].losses
    assert [parity is None for parity in comparison.parity] == [True, False, True, False]
    assert comparison.gradients == 2 * 1_053_824


def test_a_text_of_several_sizes_is_one_strategy():
    assert rows(jobs.job_of(Recipe(), "fsdp=2,tp=2")) == [("pocket-llama", "single"), ("pocket-llama", "fsdp=2,tp=2")]


def test_strategies_without_a_recipe_are_those_of_the_default_model():
    with pytest.raises(HfscaleError, match="use tp=1, 2 or 4"):
        compare(strategies=["tp=3"])


def test_what_json_cannot_hold_becomes_null():
    row = Row("m", "ddp=2", 2, "fp32", losses=[1.0, float("nan")], max_loss_difference=float("inf"))
    written = json.dumps(Comparison([row], 1.0, 2, 0, 1, [None]).to_dict(), allow_nan=False)
    assert json.loads(written)["rows"][0]["losses"] == [1.0, None]
