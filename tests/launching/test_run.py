"""Run: a recipe in ranks, and everything about it read from its folder."""

import contextlib
import json
import os
import pickle
import resource
import shutil
import signal
import time

import pytest

from hfscale.errors import HfscaleError, LaunchError
from hfscale.launching import folders
from hfscale.launching import launch as launching
from hfscale.launching import run as running
from hfscale.launching.processes import read_json
from hfscale.recipe import Recipe

FAKE = '''
import sys
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
    if mode == "leave":
        sys.exit(0)
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
    assert (run.folder / "supervisor.log").read_text() == "", "what launchers say of devices is not true of this run"
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


def test_a_training_that_leaves_early_has_failed_although_it_calls_it_success(fake_training, run_root):
    with pytest.raises(LaunchError, match=r"Rank \d failed: SystemExit: sys.exit\(0\) was called.*no result"):
        running.run(RECIPE, mode="leave")
    assert running.runs()[0].status == "failed"


def test_a_killed_supervisor_is_a_failure_although_its_ranks_still_die(fake_training, run_root, monkeypatch):
    run = running.start(RECIPE, mode="hang")
    wait_for_steps(run)
    folders.processes_of(run.folder)["supervisor"].send(signal.SIGKILL)
    monkeypatch.setattr(folders, "is_running", lambda folder: True)
    with pytest.raises(LaunchError, match="supervised the ranks ended without a word"):
        run.wait(progress=True)
    assert run.status == "failed"


def test_a_folder_that_is_removed_is_not_called_a_lack_of_memory(fake_training, run_root):
    run = running.start(RECIPE, mode="hang")
    wait_for_steps(run)
    shutil.rmtree(run.folder)
    run.stop()
    with pytest.raises(LaunchError, match=r"folder .* is gone") as caught:
        run.wait()
    assert "memory" not in str(caught.value)
    assert "failed" in repr(run)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(HfscaleError("no server"), "failed", "could not be started: no server"), (KeyboardInterrupt(), "stopped", None)],
)
def test_a_start_that_ends_before_its_supervisor_is_over_at_once(
    fake_training, run_root, monkeypatch, error, status, said
):
    def fail(block):
        raise error

    monkeypatch.setattr(launching, "warm_up", fail)
    with pytest.raises(type(error)):
        running.start(RECIPE)
    run = running.runs()[0]
    assert run.status == status
    assert not (run.folder / folders.PAYLOAD).exists()
    if said:
        with pytest.raises(LaunchError, match=said):
            run.wait()


def test_a_start_whose_caller_is_gone_is_not_running(run_root):
    folder = folders.new_run_folder("run")
    RECIPE.save(folder / folders.RECIPE)
    assert running.open_run(folder).status == "running"
    folders.mark(folder, caller={"pid": os.getpid(), "started": "before"})
    assert running.open_run(folder).status == "failed"


def test_a_full_disk_is_refused_in_a_sentence(run_root, tmp_path, monkeypatch):
    monkeypatch.setattr(Recipe, "check", lambda self: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    with (
        pytest.warns(UserWarning, match="Runs cannot be written to"),
        pytest.raises(HfscaleError, match=r"The run folder cannot be written: .*Make room"),
        no_room_for_data(),
    ):
        running.start(RECIPE)
    assert [path.name for path in tmp_path.glob("*/*")] == [f"hfscale-runs-{os.getuid()}"]


def test_a_disk_that_fills_up_while_the_recipe_is_written(run_root, monkeypatch):
    monkeypatch.setattr(Recipe, "check", lambda self: None)
    new_run_folder = folders.new_run_folder
    with contextlib.ExitStack() as room, pytest.raises(HfscaleError, match="The run folder cannot be written"):
        monkeypatch.setattr(
            folders, "new_run_folder", lambda label: (new_run_folder(label), room.enter_context(no_room_for_data()))[0]
        )
        running.start(RECIPE)


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
    (first.folder / folders.RECIPE).write_text('{"of": "another version"}')
    assert first.folder.name in repr(running.runs())
    assert second.recipe.model in running.runs()._repr_html_()


def test_wrong_use_starts_nothing(run_root, monkeypatch, tmp_path):
    monkeypatch.setattr(running, "start_launch", lambda *a, **k: pytest.fail("something was started"))
    for call, sentence in [
        (lambda: running.start({"strategy": "single"}), "needs a Recipe"),
        (lambda: running.start(RECIPE, steps=3), "no option 'steps': it has timeout, threads, setup"),
        (lambda: running.start(RECIPE, setup=3), "setup=3: expected a function"),
        (lambda: running.start(RECIPE, trainer_class=3), "trainer_class=3: expected a class derived from"),
        (lambda: running.start(RECIPE, trainer_class=dict), "trainer_class=.*dict.*: expected a class derived from"),
        *[
            (lambda threads=threads: running.start(RECIPE, threads=threads), "threads=.*whole number of at least 1")
            for threads in (0, -1, "2", 1.5, True)
        ],
        (lambda: running.start(RECIPE, timeout=-1), "positive number of seconds"),
        (lambda: running.start(RECIPE.with_(device="cuda")), "device='cuda'"),
        (lambda: running.open_run(tmp_path / "nowhere"), "There is no run folder"),
        (lambda: running.open_run(tmp_path), "is not the folder of a run"),
        (lambda: running.open_run(None), "takes the path or the name .* got a NoneType"),
        (lambda: running.open_run(5), "takes the path or the name .* got a int"),
        (lambda: running.open_run("x" * 5000), "There is no run folder x{200}…"),
        (lambda: running.open_run("~nobody-of-this-name/run"), "There is no run folder ~nobody"),
    ]:
        with pytest.raises(HfscaleError, match=sentence):
            call()
    assert not list(run_root.glob("*"))


def test_a_pickle_in_a_run_folder_is_never_read(run_root, tmp_path):
    """Folders are passed on: a run that somebody made must not run code here."""

    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was read",))

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


@contextlib.contextmanager
def no_room_for_data():
    """Empty files can be made, and nothing written to them, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wait_for_steps(run, seconds=60):
    end = time.monotonic() + seconds
    while len(run.losses) < 2:
        assert time.monotonic() < end, "the ranks did not start"
        time.sleep(0.02)
