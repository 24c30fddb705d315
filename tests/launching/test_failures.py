"""A launch that fails says which rank, what, where, and leaves no process."""

import os
import signal
import sys
import time

import pytest

from hfscale.errors import HfscaleError, LaunchError


def test_a_failing_rank_is_named_with_the_users_line(ranks):
    def check(labels):
        if max(labels) > 9:
            raise ValueError(f"label {max(labels)} is out of range")

    def work():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 1:
            check([3, 12])
        dist.all_reduce(torch.ones(1))

    begin = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        ranks(work)
    error = caught.value
    assert time.monotonic() - begin < 20
    assert error.rank == 1
    assert error.cause == "ValueError: label 12 is out of range"
    assert [frame.function for frame in error.frames] == ["work", "check"]
    assert error.frames[-1].code == 'raise ValueError(f"label {max(labels)} is out of range")'
    assert error.frames[-1].place == __file__
    assert "Traceback" in error.traceback
    assert error.log_path.name == "rank1.log"
    assert "label 12" in error.log_path.read_text()
    assert str(error).splitlines()[0] == "Rank 1 failed: ValueError: label 12 is out of range"
    assert len(str(error).splitlines()) < 10
    assert error._render_traceback_() == [f"LaunchError: {error}"]


def test_an_exception_without_a_text_is_reported(ranks):
    class Silent(Exception):
        def __str__(self):
            raise TypeError("no text")

    def work():
        raise Silent

    with pytest.raises(LaunchError, match=r"Silent: \(it has no text: its __str__ raised TypeError\)") as caught:
        ranks(work, world_size=1)
    assert caught.value.frames[-1].function == "work"


def test_a_long_message_is_cut_in_the_report_and_whole_in_the_traceback(ranks):
    def work():
        raise ValueError("word " * 5000)

    with pytest.raises(LaunchError) as caught:
        ranks(work, world_size=1)
    assert 400 < len(caught.value.cause) < 600
    assert caught.value.cause.endswith("…")
    assert "word " * 4999 in caught.value.traceback


def test_an_endless_recursion_stays_short(ranks):
    def deeper(number):
        return deeper(number + 1)

    with pytest.raises(LaunchError, match="RecursionError") as caught:
        ranks(deeper, 0, world_size=1)
    assert len(str(caught.value).splitlines()) < 25
    assert "more …" in str(caught.value)


def test_a_killed_rank_is_told_from_its_victims(ranks):
    def work():
        import os
        import signal

        import torch
        import torch.distributed as dist

        dist.barrier()
        if dist.get_rank() == 0:
            print("last words")
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))  # rank 1 fails here, since its peer is gone

    with pytest.raises(LaunchError) as caught:
        ranks(work)
    assert caught.value.rank == 0
    assert "killed by signal 9" in str(caught.value)
    assert "out of memory" in caught.value.hint
    assert "last words" in str(caught.value)


@pytest.mark.parametrize(
    ("ending", "sentence"), [(lambda: sys.exit(3), r"sys.exit\(3\)"), (lambda: os._exit(7), "exit code 7")]
)
def test_a_rank_that_leaves_is_a_failure(ranks, ending, sentence):
    with pytest.raises(LaunchError, match=sentence):
        ranks(ending, world_size=1)


def test_sys_exit_with_success_returns_none(ranks):
    assert ranks(lambda: sys.exit(), world_size=1).by_rank == [None]


def test_a_value_that_cannot_travel_is_named(ranks):
    with pytest.raises(LaunchError, match=r"Rank 0 returned a value of type generator that cannot be sent back.*file"):
        ranks(lambda: (number for number in range(3)), world_size=1)


def test_a_value_that_is_too_large_is_refused(ranks):
    def work():
        from hfscale.launching import rank

        rank.VALUE_LIMIT = 1000
        return b"x" * 2000

    with pytest.raises(LaunchError, match=r"Rank 0 returned .* MB; at most"):
        ranks(work, world_size=1)


def test_a_rank_that_returns_early_fails_the_one_that_waits_for_it(ranks):
    def work():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 1:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(LaunchError) as caught:
        ranks(work, timeout=30)
    assert caught.value.rank == 1
    assert "Rank 0 had already returned, while rank 1 was waiting for it in a collective" in caught.value.hint


def test_a_time_limit_says_where_each_rank_was(ranks):
    def work():
        import signal

        import torch.distributed as dist

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if dist.get_rank() == 1:
            dist.recv(dist_tensor())
        else:
            nap()

    def dist_tensor():
        import torch

        return torch.ones(1)

    def nap():
        time.sleep(600)

    with pytest.raises(LaunchError) as caught:
        ranks(work, timeout=2)
    text = str(caught.value)
    assert "No result after 2 s" in text
    assert "rank 0 was in nap" in text
    assert f"rank 1 was in recv ({__file__}:" in text
    assert caught.value.rank is None


def test_a_failure_does_not_wait_for_a_rank_that_ignores_signals(ranks):
    """The launcher itself would give it 30 s."""

    def work():
        import signal
        import time

        import torch.distributed as dist

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        dist.barrier()
        if dist.get_rank() == 0:
            raise RuntimeError("first")
        time.sleep(600)

    begin = time.monotonic()
    with pytest.raises(LaunchError, match="Rank 0 failed: RuntimeError: first"):
        ranks(work)
    assert time.monotonic() - begin < 15


def test_a_failure_does_not_wait_for_what_a_rank_has_started(ranks):
    """A child of the rank keeps the pipe open by which the launcher would notice the rank's end."""

    def work():
        import os
        import time

        if os.fork() == 0:
            time.sleep(600)
        os.kill(os.getpid(), 9)

    begin = time.monotonic()
    with pytest.raises(LaunchError, match="killed by signal 9"):
        ranks(work, world_size=1)
    assert time.monotonic() - begin < 15


def test_a_wrong_world_size_is_an_error_before_user_code(ranks, monkeypatch, tmp_path):
    """The proof bites: a rank that was promised another world than it sees ends with that sentence."""

    def work():
        import dataclasses

        from hfscale.launching import rank
        from hfscale.launching.request import LaunchRequest
        from hfscale.training.events import EventWriter

        request = LaunchRequest(str(tmp_path), 2, "cpu", 1, "no", 0.0, environment={})
        import torch.distributed as dist

        dist.destroy_process_group()
        rank._enter(dataclasses.replace(request, world_size=2), 0, EventWriter(tmp_path / "e.jsonl", 0, 0.0))

    with pytest.raises(LaunchError, match="Asked for 2 ranks, rank 0 sees 1"):
        ranks(work, world_size=1)


def test_a_value_that_only_ranks_know_is_a_sentence(ranks, tmp_path, monkeypatch):
    def work():
        import sys

        sys.path.insert(0, str(tmp_path))
        (tmp_path / "only_in_ranks.py").write_text("class Thing: pass\n")
        import only_in_ranks

        return only_in_ranks.Thing()

    with pytest.raises(HfscaleError, match="cannot be read here"):
        ranks(work, world_size=1)


def test_a_crash_in_native_code_has_the_users_line(ranks):
    def work():
        import ctypes

        ctypes.string_at(0)

    with pytest.raises(LaunchError, match=f"signal {int(signal.SIGSEGV)}") as caught:
        ranks(work, world_size=1)
    assert "Segmentation fault" in caught.value.log_tail
    assert caught.value.frames[-1].code == "ctypes.string_at(0)"  # from faulthandler's stack
