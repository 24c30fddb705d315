"""The command: exit codes, sentences on stderr, JSON, and the main job in a small form."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hfscale import Recipe
from hfscale.cli import main

GARDEN = str(Path(__file__).parent / "fixtures" / "garden.txt")
QUICK = ["--data", GARDEN, "--steps", "2", "--global-batch", "4", "--seq-len", "32", "--device", "cpu"]


COMMAND = [sys.executable, "-c", "from hfscale.cli import main; main()"]


@pytest.fixture
def hfscale(tmp_path, monkeypatch, capsys, no_leftovers):
    """Runs the command in an empty folder, in this process, whose warm server it can use; returns how it ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["hfscale", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, end.value.code or 0, out, err)

    return call


def test_compare_prints_the_table_and_writes_the_json(hfscale, tmp_path):
    done = hfscale("compare", *QUICK, "--strategy", "ddp=2", "--strategy", "fsdp=2", "--json", "out.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("✓ agrees") == 2
    assert "3 runs, 5 processes" in " ".join(done.stdout.split())
    assert "notebooks/00_start_here.ipynb" in done.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["ok"] is True
    assert result["seconds"] > 0
    assert [(row["strategy"], row["verdict"]) for row in result["rows"]] == [
        ("single", "reference"),
        ("ddp=2", "agrees"),
        ("fsdp=2", "agrees"),
    ]
    assert all(len(row["losses"]) == 2 for row in result["rows"])
    assert result["rows"][2]["parameter_bytes_per_rank"] == [2107648, 2107648]


def test_a_strategy_asked_for_and_refused_is_bad_usage(hfscale):
    done = hfscale("compare", *QUICK, "--strategy", "ddp=2", "--strategy", "tp=3")
    assert done.returncode == 2
    assert "– refused" in done.stdout
    assert "use tp=1, 2 or 4" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "--model", "pocket-lama"], "pocket-llama"),
        (["compare", "--data", "nowhere.txt"], "nowhere.txt"),
        (["compare", "--strategy", "tp=2,tp=4"], "names tp twice"),
        (["compare", "--strategy", "tp=3"], "use tp=1, 2 or 4"),
        (["compare", "--strategy", "ddp=5", "--global-batch", "4"], "cannot be shared by 5 data ranks"),
        (["compare", "--steps", "-1"], "steps is -1"),
        (["compare", "--precision", "fp16"], "precision='bf16'"),
        (["compare", "--device", "cuda"], "device='cpu'"),
        (["compare", "--json", "no/such/folder/x.json"], "there is no folder"),
        (["compare", "--json", "/dev/null"], "/dev/null is not a file"),
        (["compare", "--colour", "red"], "No such option"),
        (["run", "absent.json"], "no recipe file absent.json"),
    ],
)
def test_wrong_uses_are_one_sentence_and_exit_2(hfscale, arguments, sentence):
    done = hfscale(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout.strip()


def test_run_trains_a_recipe_from_a_file_whatever_the_terminal_can_show(tmp_path, no_leftovers):
    Recipe(data=GARDEN, steps=2, global_batch=4, seq_len=32, eval_samples=4, device="cpu").save(
        tmp_path / "recipe.json"
    )
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}  # has no arrow
    done = subprocess.run(
        [*COMMAND, "run", "recipe.json"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "finished: training loss" in done.stdout
    assert " ? " in done.stdout


def test_run_refuses_a_broken_file_with_the_line(hfscale, tmp_path):
    (tmp_path / "recipe.json").write_text('{"steps": 2,\n "stratgy": "tp=2"}')
    done = hfscale("run", "recipe.json")
    assert done.returncode == 2
    assert "Did you mean strategy" in done.stderr


def test_ctrl_c_ends_the_ranks_and_says_so_in_one_line(tmp_path, run_root, no_leftovers):
    arguments = ["compare", "--data", GARDEN, "--steps", "5000", "--device", "cpu", "--strategy", "ddp=2"]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not any(run_root.glob("*/rank0.jsonl")):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "interrupted; all ranks have ended\n")


def test_a_narrow_terminal_gets_lines_and_no_cut_numbers(hfscale, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    done = hfscale("compare", *QUICK, "--strategy", "ddp=2")
    line = " ".join(done.stdout.split())
    assert re.search(r"pocket-llama, ddp=2, 2, \d\.\d\d → \d\.\d\d, .*, 4.22 MB, ✓ agrees", line)


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
def test_an_output_that_cannot_be_written_is_no_traceback(redirection, tmp_path, no_leftovers):
    command = f"exec {shlex.quote(sys.executable)} -c 'from hfscale.cli import main; main()' doctor {redirection}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "Traceback" not in done.stderr


def test_a_working_directory_that_is_gone_is_told(tmp_path, no_leftovers):
    gone = tmp_path / "gone"
    gone.mkdir()
    python = shlex.quote(sys.executable)
    command = f"cd {gone} && rmdir {gone} && exec {python} -c 'from hfscale.cli import main; main()' doctor"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith("error: The folder that this command was started in is gone")


def test_doctor_and_version(hfscale):
    done = hfscale("doctor")
    assert done.returncode == 0
    assert "pocket-moe" in done.stdout
    assert hfscale("--version").stdout.startswith("hfscale 0.")
