"""hfscale.launch: functions by value, values back, the right world, and refusals before anything starts."""

import functools
import os
import threading
import time

import pytest

from hfscale.errors import HfscaleError
from hfscale.launching import launch as launching
from hfscale.launching.launch import Results, launch


def test_each_rank_returns_its_value(ranks):
    shift = 10

    def work(a, b):
        import torch
        import torch.distributed as dist

        total = torch.ones(3) * (dist.get_rank() + 1)
        dist.all_reduce(total)
        return {"rank": dist.get_rank(), "world": dist.get_world_size(), "total": total, "sum": a + b + shift}

    results = ranks(functools.partial(work, b=2), 1)
    assert [value["rank"] for value in results] == [0, 1]
    assert [value["world"] for value in results.by_rank] == [2, 2]
    assert results[1]["total"].tolist() == [3.0, 3.0, 3.0]
    assert results[0]["sum"] == 13
    assert len(results) == 2


def test_launch_from_a_process_that_has_used_threads_and_an_accelerator(ranks):
    """Forking ranks from here would hang in their first parallel operation, and accelerate would refuse to launch."""
    import torch
    from accelerate import Accelerator

    torch.randn(1500, 1500) @ torch.randn(1500, 1500)
    accelerator = Accelerator(cpu=True)

    def work():
        import torch

        torch.set_num_threads(2)
        return float((torch.ones(1500, 1500) @ torch.ones(1500, 1500))[0, 0])

    assert ranks(work).by_rank == [1500.0, 1500.0]
    assert accelerator.num_processes == 1


def test_one_rank_is_another_process_with_a_process_group(ranks):
    def work():
        import os

        import torch.distributed as dist

        return os.getpid(), dist.is_initialized(), dist.get_world_size(), dist.get_backend()

    ((pid, initialised, world_size, backend),) = ranks(work, world_size=1)
    assert pid != os.getpid()
    assert (initialised, world_size, backend) == (True, 1, "gloo")


def test_three_ranks_and_their_threads(ranks, monkeypatch):
    monkeypatch.setenv("HFSCALE_CORES", "9")

    def work():
        import torch

        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    assert ranks(work, world_size=3).by_rank == [(3, "3")] * 3


def test_ranks_see_the_callers_surroundings_of_now(ranks, monkeypatch, tmp_path):
    def look():
        import os
        import random
        import sys

        import numpy

        numbers = (random.random(), numpy.random.rand())
        return os.environ.get("HFSCALE_TEST_WORD"), os.getcwd(), "/nowhere/modules" in sys.path, numbers

    first = ranks(look, world_size=1)[0]
    assert first[0] is None
    monkeypatch.setenv("HFSCALE_TEST_WORD", "later")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/nowhere/modules")
    second = ranks(look, world_size=1)[0]
    assert second[:3] == ("later", str(tmp_path), True)
    assert all(a != b for a, b in zip(first[3], second[3], strict=True)), "random numbers repeat from launch to launch"


def test_a_caller_that_is_a_rank_itself_does_not_confuse_its_ranks(ranks, monkeypatch):
    others = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "MASTER_PORT": "1", "ACCELERATE_USE_FSDP": "true"}
    for name, value in others.items():
        monkeypatch.setenv(name, value)

    def world():
        import torch.distributed as dist
        from accelerate import Accelerator

        return dist.get_rank(), Accelerator().num_processes, os.environ.get("ACCELERATE_USE_FSDP")

    assert ranks(world).by_rank == [(0, 2, None), (1, 2, None)]


def test_logs_are_separate_and_whole(ranks):
    def talk():
        import os

        import torch.distributed as dist

        for line in range(200):
            print("rank", dist.get_rank(), "line", line)
        os.write(1, b"\xff\xfe raw bytes\n")
        print("lone surrogate \ud800")

    logs = ranks(talk).logs
    for rank in (0, 1):
        assert [line for line in logs[rank].splitlines() if line.startswith("rank")] == [
            f"rank {rank} line {line}" for line in range(200)
        ]
        assert "raw bytes" in logs[rank]
        assert "lone surrogate" in logs[rank]


def test_the_folder_goes_after_success_and_stays_after_failure(ranks, run_root):
    ranks(int, world_size=1)
    assert list(run_root.iterdir()) == []
    with pytest.raises(HfscaleError):
        ranks(int, "not a number", world_size=1)
    assert len(list(run_root.iterdir())) == 1


def test_two_threads_launch_at_once(ranks):
    def work(name):
        import torch.distributed as dist

        return name, dist.get_rank()

    seen = {}
    threads = [threading.Thread(target=lambda name=name: seen.update({name: ranks(work, name)})) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: results.by_rank for name, results in seen.items()} == {
        "a": [("a", 0), ("a", 1)],
        "b": [("b", 0), ("b", 1)],
    }


def test_a_dropped_handle_lets_the_launch_go_on(no_leftovers, tmp_path):
    import gc

    launching.start_launch(lambda: time.sleep(0.5), world_size=1, folder=tmp_path)
    gc.collect()
    end = time.monotonic() + 20
    while not (tmp_path / "outcome.json").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert (tmp_path / "result0.pkl").exists()


def test_stop_ends_a_deaf_rank(no_leftovers, tmp_path):
    def deaf():
        import signal
        import time

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)

    launched = launching.start_launch(deaf, world_size=2, folder=tmp_path)
    assert launched.state == "running"
    assert not launched.wait(0.5)
    begin = time.monotonic()
    launched.stop(grace=0.5)
    assert time.monotonic() - begin < 5
    assert launched.poll()
    assert launched.state == "stopped"
    with pytest.raises(HfscaleError, match="it was stopped"):
        launched.results()
    launched.stop()  # once more does no harm


@pytest.mark.parametrize("world_size", [0, -1, "2", True, 1.5, None])
def test_world_size_is_refused(world_size, nothing_starts):
    with pytest.raises(HfscaleError, match=r"world_size=.*at least 1"):
        launch(print, world_size=world_size)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((42,), {}, "did you write launch"),
        ((print,), {"device": "tpu"}, "choose 'auto', 'cpu' or 'cuda'"),
        ((print,), {"timeout": 0}, "positive number of seconds"),
        ((print,), {"timeout": "1"}, "positive number of seconds"),
    ],
)
def test_wrong_use_is_refused(arguments, options, sentence, nothing_starts):
    with pytest.raises(HfscaleError, match=sentence):
        launch(*arguments, **options)


def test_a_platform_without_fork_is_refused(monkeypatch, nothing_starts):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(HfscaleError, match="WSL2"):
        launch(print)


def test_results_show_themselves():
    assert repr(Results([1, "a"])) == "rank 0: 1\nrank 1: 'a'"


@pytest.fixture
def nothing_starts(monkeypatch, run_root):
    """Fails when a launch comes as far as making a folder or starting the server."""
    monkeypatch.setattr(launching, "warm_up", lambda block: pytest.fail("the server was started"))
    yield
    assert not run_root.exists()
