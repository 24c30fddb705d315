"""What all tests share: `ranks`, which runs a function in real processes and checks that none of them is left."""

from __future__ import annotations

import os
import time
import uuid

import psutil
import pytest

# Inherited by every server that a test starts, and through it by all supervisors and ranks: how we know our own
# processes.
TOKEN = f"HFSCALE_TEST_SESSION={uuid.uuid4().hex}"
os.environ.update([TOKEN.split("=")])


@pytest.fixture
def ranks(no_leftovers):
    """`ranks(fn, *args, world_size=2, timeout=60)` calls fn in real ranks, as hfscale.launch does.

    When the launch fails, the logs of its ranks are printed, and pytest shows them if that fails the test. A test
    that leaves a process behind fails.
    """
    from hfscale.errors import LaunchError
    from hfscale.launching.launch import launch

    def call(fn, *args, world_size=2, timeout=60):
        try:
            return launch(fn, *args, world_size=world_size, timeout=timeout)
        except LaunchError as error:
            _print_logs(error)
            raise

    return call


@pytest.fixture
def no_leftovers(run_root):
    """Fails the test when a supervisor, a rank, or the server of an ended script is alive 3 s after it; ends it too."""
    yield
    end = time.monotonic() + 3.0
    while (left := own_processes()) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        process.kill()
    assert not left, f"processes left behind: {[process.pid for process in left]}"


@pytest.fixture
def run_root(tmp_path, monkeypatch):
    """The folder for the run folders of this test."""
    monkeypatch.setenv("HFSCALE_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def own_processes() -> list[psutil.Process]:
    """Supervisors, ranks and servers of this test session that run, without the warm server of this process itself."""
    from hfscale.launching import server

    mine = server._current.process.pid if server._current else None
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == mine or process.status() == psutil.STATUS_ZOMBIE:
                continue
            # A fork keeps the command line and the first environment of the server.
            is_ours = any("hfscale.launching.server" in part for part in process.cmdline())
            if is_ours and process.environ().get("HFSCALE_TEST_SESSION") == TOKEN.split("=")[1]:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _print_logs(error) -> None:
    from hfscale.launching.folders import tail

    if error.log_path is not None:
        for log in sorted(error.log_path.parent.glob("*.log")):
            print(f"--- {log}\n{tail(log, lines=30)}")
