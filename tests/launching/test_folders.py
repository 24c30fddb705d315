"""Run folders: where they are made, and which of them are removed."""

import os
import time

import pytest

from hfscale.errors import HfscaleError
from hfscale.launching import folders
from hfscale.launching.processes import Process, read_json, write_json


def test_a_new_folder_is_marked_and_named_by_time(run_root):
    first, second = folders.new_run_folder("test"), folders.new_run_folder("test")
    assert first != second
    assert first.parent == run_root
    assert first.name.startswith(time.strftime("%Y%m%d-"))
    assert read_json(first / folders.MARKER)["label"] == "test"
    assert set(folders.run_folders(run_root)) == {first, second}


def test_only_old_finished_runs_of_ours_are_pruned(run_root, monkeypatch):
    monkeypatch.setenv("HFSCALE_KEEP_RUNS", "2")
    made = [folders.new_run_folder("test") for _ in range(5)]
    for position, folder in enumerate(made):
        folders.mark(folder, created=float(position))
    for folder in made[:4]:
        write_json(folder / folders.OUTCOME, {"state": "finished"})
    Process.current().write(made[0] / folders.SUPERVISOR)  # the oldest of all, but alive
    stranger = run_root / "20200101-000000-abcdef"
    stranger.mkdir()
    folders.prune(run_root)
    assert [folder.exists() for folder in made] == [True, False, True, True, True]
    assert stranger.exists()


def test_a_launch_json_of_another_program_is_left_alone(run_root, monkeypatch):
    monkeypatch.setenv("HFSCALE_KEEP_RUNS", "0")
    for name, text in [("editor", '{"version": "0.2.0"}'), ("list", "[1]")]:
        (run_root / name).mkdir(parents=True)
        (run_root / name / folders.MARKER).write_text(text)
    folder = folders.new_run_folder("test")
    assert folders.run_folders(run_root) == [folder]
    assert (run_root / "editor").exists()


def test_a_reused_pid_does_not_look_alive(run_root):
    folder = folders.new_run_folder("test")
    Process(os.getpid(), "0").write(folder / folders.SUPERVISOR)
    assert not folders.is_running(folder)


def test_an_unwritable_root_falls_back_with_a_sentence(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("HFSCALE_RUNS", str(blocker / "runs"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.warns(UserWarning, match="Runs cannot be written to .*; they go to .*HFSCALE_RUNS"):
        root = folders.runs_root()
    assert root.parent == tmp_path


def test_a_wrong_number_of_kept_runs_is_refused(run_root, monkeypatch):
    monkeypatch.setenv("HFSCALE_KEEP_RUNS", "many")
    with pytest.raises(HfscaleError, match="HFSCALE_KEEP_RUNS is 'many'"):
        folders.new_run_folder("test")
