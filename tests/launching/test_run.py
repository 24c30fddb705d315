"""Run: a recipe in ranks, and everything about it read from its folder."""

import json
import pickle

import pytest

from hfscale.errors import HfscaleError, LaunchError
from hfscale.launching import run as running
from hfscale.launching.processes import read_json
from hfscale.recipe import Recipe

FAKE = '''
import time
from hfscale.launching.rank import current_rank
from hfscale.training.events import EventWriter


def train(recipe, mode="train", **options):
    """Stands for the training, which has tests of its own: two steps, then as `mode` says."""
    here = current_rank()
    events = EventWriter(here.folder / f"rank{here.rank}.jsonl", here.rank, here.started)
    for step in (1, 2):
        events.write("step", step=step, loss=5.0 - step)
    print("a warning of a library")
    if mode == "fail":
        raise ValueError("diverged")
    if mode == "hang":
        time.sleep(600)
    return {"rank": here.rank, "seed": recipe["seed"], "nan": float("nan"), "options": sorted(options)}
'''


@pytest.fixture
def fake_training(tmp_path, monkeypatch, no_leftovers):
    (tmp_path / "fake_training.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(running, "TRAINING_ENTRY", "fake_training:train")
    monkeypatch.setattr(running, "TRAINING_OPTIONS", (*running.TRAINING_OPTIONS, "mode"))
    monkeypatch.setattr(Recipe, "check", lambda self: None)


RECIPE = Recipe(strategy="ddp=2", steps=2, seed=7)


def test_a_run_is_read_from_its_folder(fake_training, run_root):
    run = running.run(RECIPE, snapshot=True)
    for seen in (run, running.open_run(run.folder), running.open_run(run.folder.name)):
        assert seen.status == "finished"
        assert seen.recipe == RECIPE
        assert seen.losses == [4.0, 3.0]
        assert [value["rank"] for value in seen.result["by_rank"]] == [0, 1]
        assert seen.result["by_rank"][1]["seed"] == 7
        assert seen.result["by_rank"][0]["options"] == ["snapshot"]
        assert seen.tail(rank=1) == "a warning of a library"
        assert [event["kind"] for event in seen.events()] == ["launch", "step", "step", "end"]
        assert seen.wait() is seen
        assert "finished" in repr(seen)
        assert "3.0000" in seen._repr_html_()
    environment = read_json(run.folder / "environment.json")
    assert environment["device"] == "cpu"
    assert environment["versions"]["torch"]
    assert not list(run.folder.glob("*.pkl")), "what is kept must be readable without running code"
    assert {path.name for path in run.folder.iterdir()} == {
        *("launch.json", "recipe.json", "environment.json", "outcome.json", "result.json", "supervisor.log"),
        *(f"rank{rank}.{kind}" for rank in (0, 1) for kind in ("log", "jsonl")),
    }


def test_result_exists_although_nobody_waits(fake_training, run_root):
    run = running.start(RECIPE)
    other = running.open_run(run.folder)
    assert other.status == "running"
    assert other.wait(timeout=30).status == "finished"
    assert len(other.result["by_rank"]) == 2


def test_a_failed_run_keeps_what_it_wrote(fake_training, run_root):
    with pytest.raises(LaunchError, match="ValueError: diverged") as caught:
        running.run(RECIPE, mode="fail")
    run = running.runs()[0]
    assert run.status == "failed"
    assert run.losses == [4.0, 3.0]
    assert caught.value.log_path.parent == run.folder
    with pytest.raises(HfscaleError, match="has no result: it is failed"):
        run.result  # noqa: B018


def test_stop(fake_training, run_root):
    run = running.start(RECIPE, mode="hang")
    assert run.wait(timeout=0.1).status == "running"
    with pytest.raises(HfscaleError, match="belongs to another process"):
        running.open_run(run.folder).stop()
    with pytest.raises(HfscaleError, match="it is running; wait"):
        run.result  # noqa: B018
    run.stop()
    assert run.status == running.open_run(run.folder).status == "stopped"
    assert run.wait() is run


def test_a_time_limit_holds_although_nobody_waits(fake_training, run_root):
    run = running.start(RECIPE, mode="hang", timeout=1.5)
    assert running.open_run(run.folder)._wait(30)
    with pytest.raises(LaunchError, match=r"No result after 1\.5 s"):
        run.wait()


def test_runs_are_listed_newest_first(fake_training, run_root):
    assert repr(running.runs()).startswith("No runs yet")
    first, second = (running.run(RECIPE.with_(seed=seed, strategy="single")) for seed in (1, 2))
    found = running.runs()
    assert [run.folder for run in found] == [second.folder, first.folder]
    assert found._repr_html_().count("<tr>") == 3
    assert len(repr(found).splitlines()) == 2


def test_wrong_use_starts_nothing(run_root, monkeypatch, tmp_path):
    monkeypatch.setattr(running, "start_launch", lambda *a, **k: pytest.fail("something was started"))
    for call, sentence in [
        (lambda: running.start({"strategy": "single"}), "needs a Recipe"),
        (lambda: running.start(RECIPE, steps=3), "no option 'steps'"),
        (lambda: running.start(RECIPE, timeout=-1), "positive number of seconds"),
        (lambda: running.start(RECIPE.with_(device="cuda")), "device='cuda'"),
        (lambda: running.open_run(tmp_path / "nowhere"), "There is no run folder"),
        (lambda: running.open_run(tmp_path), "is not the folder of a run"),
    ]:
        with pytest.raises(HfscaleError, match=sentence):
            call()
    assert not list(run_root.glob("*"))


def test_a_pickle_in_a_run_folder_is_never_read(run_root, tmp_path):
    """Folders are passed on: a run that somebody made must not run code here."""

    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was read",))

    from hfscale.launching import folders

    folder = folders.new_run_folder("run")
    RECIPE.save(folder / folders.RECIPE)
    for name in ("payload.pkl", "result0.pkl", "result1.pkl"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    (folder / folders.OUTCOME).write_text(json.dumps({"state": "finished"}))
    (folder / folders.RESULT).write_text(json.dumps({"by_rank": [{}]}))
    run = running.open_run(folder)
    assert run.wait().result == {"by_rank": [{}]}
    repr(run)


def test_the_options_are_those_of_the_training():
    import inspect

    from hfscale.training.rank import train_recipe

    parameters = inspect.signature(train_recipe).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == set(running.TRAINING_OPTIONS)
