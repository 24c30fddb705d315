"""Which rows a comparison has, and on which device they all run."""

import pytest

from hfscale import Recipe
from hfscale.checking import compare as comparing
from hfscale.errors import HfscaleError


def rows(job):
    return [(recipe.model, strategy) for recipe, strategies in job for strategy in strategies]


def test_the_main_job_has_both_models_and_every_kind_of_strategy():
    assert rows(comparing.default_job()) == [
        ("pocket-llama", "single"),
        ("pocket-llama", "ddp=2"),
        ("pocket-llama", "fsdp=2"),
        ("pocket-llama", "tp=2"),
        ("pocket-llama", "fsdp=2,tp=2"),
        ("pocket-moe", "single"),
        ("pocket-moe", "ep=2"),
        ("pocket-moe", "tp=2,ep=2"),
    ]
    assert rows(comparing.comparison_job(None, None, steps=3)) == rows(comparing.default_job())


def test_options_choose_rows_and_single_always_comes_first():
    assert rows(comparing.comparison_job("pocket-moe", None)) == rows(comparing.default_job())[5:]
    assert rows(comparing.comparison_job(None, ["tp=2", "single", "tp=2"])) == rows(comparing.default_job())[0:4:3]
    assert rows(comparing.comparison_job("my-folder", None)) == [
        ("my-folder", "single"),
        ("my-folder", "ddp=2"),
        ("my-folder", "fsdp=2"),
    ]


def test_rows_for_more_ranks_than_gpus_send_all_rows_to_the_cpu(monkeypatch):
    from hfscale import hardware

    for gpus, device, noted in [(0, "cpu", False), (2, "cpu", True), (4, "cuda", False), (8, "cuda", False)]:
        monkeypatch.setattr(hardware, "cuda_devices", lambda gpus=gpus: gpus)
        monkeypatch.setattr(comparing, "cuda_devices", lambda gpus=gpus: gpus)
        job = comparing.default_job()
        assert {recipe.device for recipe, _ in comparing.on_one_device_kind(job)} == {device}
        note = comparing.device_note(job)
        assert bool(note) == noted
    monkeypatch.setattr(comparing, "cuda_devices", lambda: 2)
    assert comparing.device_note(comparing.default_job()) == (
        "All rows run on the CPU: the largest needs 4 GPUs and 2 GPUs can be used here."
    )
    assert comparing.device_note(comparing.default_job(device="cpu")) is None


def test_nothing_to_compare_is_refused_before_anything_starts():
    with pytest.raises(HfscaleError, match="use tp=1, 2 or 4"):
        comparing.compare(Recipe(), strategies=["tp=3", "ep=2"])
    with pytest.raises(HfscaleError, match="name one beside single"):
        comparing.compare(Recipe(), strategies=["single"])
    with pytest.raises(HfscaleError, match="compare needs a Recipe"):
        comparing.compare("pocket-llama")
