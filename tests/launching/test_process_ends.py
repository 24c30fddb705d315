"""However the caller, the server, a supervisor or a rank dies, nothing stays behind; and Ctrl-C reaches every rank."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hfscale.errors import LaunchError
from hfscale.launching import folders, server
from hfscale.launching.launch import start_launch
from hfscale.launching.processes import without_interrupts
from hfscale.launching.run import Run

# Both ranks wait inside native code, deaf to every polite signal: the hardest case to end.
STUCK = """
def stuck():
    import signal
    import torch
    import torch.distributed as dist
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("stuck", flush=True)
    dist.recv(torch.ones(1), src=1 - dist.get_rank())
"""
exec(STUCK)


def test_a_killed_rank_ends_the_others(stuck_launch):
    processes = stuck_launch()
    os.kill(processes["rank1"].pid, signal.SIGKILL)
    assert_gone(processes)
    with pytest.raises(LaunchError, match="Rank 1 failed: it was killed by signal 9"):
        stuck_launch.launched.results()


def test_a_killed_supervisor_takes_its_ranks_with_it(stuck_launch):
    processes = stuck_launch()
    os.kill(processes["supervisor"].pid, signal.SIGKILL)
    assert_gone(processes)
    assert stuck_launch.launched.wait(3)  # the last thread of a killed process may close its sockets a moment later
    assert stuck_launch.launched.state == "failed"
    with pytest.raises(LaunchError, match="supervised the ranks ended without a word"):
        stuck_launch.launched.results()


def test_a_killed_server_takes_everything_with_it_and_is_replaced(stuck_launch, ranks, monkeypatch):
    """With a server of its own: so this also shows that a variable that libraries read at import counts at once."""
    server.warm_up(block=True)
    before = server._current.process.pid
    monkeypatch.setenv("HF_HUB_OFFLINE", "0" if os.environ.get("HF_HUB_OFFLINE") == "1" else "1")

    def offline():
        from huggingface_hub import constants

        return constants.HF_HUB_OFFLINE

    assert ranks(offline, world_size=1).by_rank == [os.environ["HF_HUB_OFFLINE"] == "1"]
    assert server._current.process.pid != before
    processes = stuck_launch()
    os.kill(server._current.process.pid, signal.SIGKILL)
    assert_gone(processes)
    monkeypatch.undo()  # the variable as it was, so that this test starts one more server and not two
    assert start_and_wait(int, stuck_launch.folder.parent).by_rank == [0]


def test_a_script_without_a_guard_launches_and_ctrl_c_ends_its_ranks(tmp_path, no_leftovers):
    script = f"""
        from hfscale.launching.launch import launch
        {textwrap.indent(STUCK, " " * 8).strip()}

        def double(number):
            import torch.distributed as dist
            return number * 2 + dist.get_rank() + offset

        offset = 100
        print(launch(double, 4).by_rank, flush=True)
        launch(stuck)
    """
    with Caller(script, tmp_path) as caller:
        assert caller.readline() == "[108, 109]"
        processes = caller.wait_until_stuck()
        begin = time.monotonic()
        os.killpg(caller.process.pid, signal.SIGINT)  # as a terminal does it: to the whole group
        assert caller.process.wait(timeout=10) == -signal.SIGINT
        assert time.monotonic() - begin < 8
        assert_gone(processes)
        assert "KeyboardInterrupt" in caller.process.stderr.read()
    assert Run(caller.folder()).status == "stopped"


IMPATIENT = f"""
    import hfscale as hs
    from hfscale.launching import run as running
    running.TRAINING_ENTRY = "fake:train"
    hs.Recipe.check = lambda self: None
    open("fake.py", "w").write({STUCK!r} + "def train(recipe): stuck()")
    import torch  # its own clean-up at exit takes a while
"""


@pytest.mark.parametrize("seconds", [0.2, 0.02])
def test_impatient_ctrl_c_is_one_interrupt_with_one_traceback(tmp_path, no_leftovers, seconds):
    with Caller(f"{IMPATIENT}\n    hs.run(hs.Recipe(strategy='ddp=2'))", tmp_path, terminal=True) as caller:
        processes = caller.wait_until_stuck()
        for _ in range(5):
            os.killpg(caller.process.pid, signal.SIGINT)
            time.sleep(seconds)
        assert caller.process.wait(timeout=10) == -signal.SIGINT
        assert_gone(processes)
        said = caller.shown()
        assert said.count("Traceback") == said.count("KeyboardInterrupt") == 1
        assert "ignored" not in said
    assert Run(caller.folder()).status == "stopped"


def test_ctrl_c_while_a_script_ends_changes_nothing_and_its_launch_says_why_it_ended(tmp_path, no_leftovers):
    script = f"""{IMPATIENT}
    hs.start(hs.Recipe(strategy='ddp=2'))
    input()
    print("the end", flush=True)
    """
    with Caller(script, tmp_path) as caller:
        processes = caller.wait_until_stuck()
        caller.process.stdin.write("\n")
        caller.process.stdin.flush()
        assert caller.readline() == "the end"
        time.sleep(0.1)
        for _ in range(5):
            os.killpg(caller.process.pid, signal.SIGINT)
            time.sleep(0.02)
        assert caller.process.wait(timeout=10) == 0
        assert caller.process.stderr.read() == ""
        assert_gone(processes)
    assert Run(caller.folder()).status == "stopped"


def test_without_interrupts_ignores_them_and_leaves_the_handler_as_it_was():
    caught = []
    handler = lambda *_: caught.append(1)  # noqa: E731
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(ZeroDivisionError), without_interrupts(), without_interrupts():
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGINT) is handler
        assert not caught
        with ThreadPoolExecutor() as pool:  # where signals cannot be set
            pool.submit(lambda: without_interrupts().__enter__()).result()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_killed_caller_takes_everything_with_it(tmp_path, no_leftovers):
    """Two callers at once, which must not get in each other's way; one of them has a forked child that outlives it."""
    script = f"""
        import os, time
        from hfscale.launching.folders import new_run_folder
        from hfscale.launching.launch import start_launch
        {textwrap.indent(STUCK, " " * 8).strip()}
        launched = start_launch(stuck, world_size=2, folder=new_run_folder("test"))
        if os.fork() == 0:  # a DataLoader worker, say: it must not keep the life lines open
            os.close(1), os.close(2)
            time.sleep(20)
            os._exit(0)
        launched.wait()
    """
    with Caller(script, tmp_path / "a") as first, Caller(script, tmp_path / "b") as second:
        for caller in (first, second):
            processes = caller.wait_until_stuck()
            caller.process.kill()
            caller.process.wait()
            assert_gone(processes)
            assert Run(caller.folder()).status == "stopped"


@pytest.fixture
def stuck_launch(tmp_path, no_leftovers):
    """Starts two stuck ranks; returns their processes and the supervisor's. Then `.launched` is the handle."""

    def begin():
        begin.folder = tmp_path / "stuck"
        begin.folder.mkdir()
        begin.launched = start_launch(stuck, world_size=2, folder=begin.folder)  # noqa: F821 - from STUCK
        return wait_until_stuck(begin.folder)

    return begin


def start_and_wait(fn, parent):
    folder = parent / "next"
    folder.mkdir()
    return start_launch(fn, world_size=1, folder=folder).results()


class Caller:
    """A script that runs in a process of its own. terminal: its stderr is one; `shown` says what was written there."""

    def __init__(self, script, directory, terminal=False):
        directory.mkdir(exist_ok=True)
        (directory / "script.py").write_text(textwrap.dedent(script))
        self.runs = directory / "runs"
        stderr = subprocess.PIPE
        if terminal:
            self._screen, stderr = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=directory,
            env=os.environ | {"HFSCALE_RUNS": str(self.runs)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            process_group=0,
        )
        if terminal:
            os.close(stderr)
            self._shown = []
            self._reader = threading.Thread(target=self._read_screen)
            self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()

    def shown(self):
        self._reader.join(10)
        return b"".join(self._shown).decode()

    def _read_screen(self):
        try:
            while data := os.read(self._screen, 4096):
                self._shown.append(data)
        except OSError:  # so a terminal says that nobody has it open any more
            pass
        os.close(self._screen)

    def readline(self):
        return self.process.stdout.readline().strip()

    def folder(self):
        return next(iter(folders.run_folders(self.runs)), None)

    def wait_until_stuck(self):
        end = time.monotonic() + 60
        while self.folder() is None and time.monotonic() < end and self.process.poll() is None:
            time.sleep(0.05)
        return wait_until_stuck(self)


def wait_until_stuck(where, seconds=60):
    """The processes of a launch whose ranks have come as far as their wait."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        folder = where.folder() if isinstance(where, Caller) else where
        if folder and all("stuck" in folders.tail(folder / f"rank{rank}.log") for rank in (0, 1)):
            time.sleep(0.1)  # from the print into the native call
            return folders.processes_of(folder)
        time.sleep(0.02)
    raise AssertionError("the ranks did not start")


def assert_gone(processes, seconds=3.0):
    assert set(processes) == {"supervisor", "rank0", "rank1"}
    end = time.monotonic() + seconds
    while (left := [name for name, process in processes.items() if process.alive]) and time.monotonic() < end:
        time.sleep(0.02)
    assert not left, f"alive after {seconds} s: {left}"
