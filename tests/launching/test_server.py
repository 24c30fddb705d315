"""The warm server: clean enough to fork from, private to its caller, gone when it is not needed."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from hfscale.errors import HfscaleError
from hfscale.launching import launch, server
from hfscale.launching.channel import private_pair


def test_the_server_is_clean(ranks):
    """One thread, no device, no IPython: whatever were there would be half there in every rank."""

    def look():
        import sys

        import torch

        return "IPython" in sys.modules, torch.cuda.is_initialized(), "transformers.trainer" in sys.modules

    assert ranks(look, world_size=1).by_rank == [(False, False, True)]
    assert server._current.log_tail() == "", "the server complains about threads, or about a module"


def test_one_server_serves_many_launches(ranks):
    ranks(int, world_size=1)
    pid = server._current.process.pid
    ranks(int, world_size=1)
    assert server._current.process.pid == pid


def test_the_callers_fingerprint_is_what_libraries_read_at_import(monkeypatch):
    before = server.import_fingerprint()
    monkeypatch.setenv("HFSCALE_RUNS", "/elsewhere")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert server.import_fingerprint() == before
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert server.import_fingerprint() != before


def test_import_and_checks_start_nothing_and_leave_torch_alone():
    code = (
        "import sys, subprocess; subprocess.Popen = None\n"
        "from hfscale.launching import launch, run\n"
        "launch.check_placement(2, 'auto')\n"
        "launch.pack(print, (), {})\n"
        "print('torch' in sys.modules)"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert seen.stdout.strip() == "False"


@pytest.mark.parametrize("message", [None, server._RETIRE, "close"])
def test_it_ends_when_idle_when_retired_and_when_its_caller_is_gone(message):
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=server.serve, args=(theirs, 0.3 if message is None else 60.0))
    begin = time.monotonic()
    serving.start()
    if message == "close":
        ours.close()
    elif message:
        ours.sendall(message)
    serving.join(10)
    assert not serving.is_alive()
    assert time.monotonic() - begin > (0.25 if message is None else 0)
    ours.close()
    theirs.close()


def test_a_server_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    broken = server.WarmServer()
    with pytest.raises(HfscaleError, match="failed to start"):
        broken.wait_ready()
    broken.close()


def test_a_server_that_is_killed_while_it_starts_says_so():
    broken = server.WarmServer()
    broken.process.kill()
    with pytest.raises(HfscaleError, match=r"failed to start. It was killed by signal 9: .*memory.*once more"):
        broken.wait_ready()
    broken.close()


def test_a_process_forked_from_the_caller_has_no_part_in_its_launches(no_leftovers, tmp_path):
    ours, theirs = private_pair()
    launched = launch.start_launch(lambda: time.sleep(1), world_size=1, folder=tmp_path)
    pid = os.fork()
    if pid == 0:
        clean = ours.fileno() == theirs.fileno() == -1 and not launch._running and server._current is None
        os._exit(0 if clean else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert ours.fileno() != -1
    assert launched.results().by_rank == [None]
    ours.close()
    theirs.close()
