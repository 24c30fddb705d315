"""Processes told apart by pid *and* start time, so that nothing of ours ever signals a stranger with a reused pid."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Process:
    """One process. `started` is its start time as the system counts it, compared as text."""

    pid: int
    started: str

    @classmethod
    def current(cls) -> Process:
        return cls(os.getpid(), _start_time(os.getpid()) or "")

    @classmethod
    def read(cls, path: Path) -> Process | None:
        """The process that `write` recorded, None when there is no such record."""
        try:
            record = json.loads(path.read_text())
            return cls(record["pid"], record["started"])
        except (OSError, ValueError, KeyError):
            return None

    def write(self, path: Path) -> None:
        write_json(path, {"pid": self.pid, "started": self.started})

    @property
    def alive(self) -> bool:
        """Whether it runs. A zombie, dead but not yet reaped by its parent, counts as gone."""
        return _start_time(self.pid) == self.started

    def send(self, signal_number: int) -> bool:
        """Signal it, if it still is the same process; returns whether it was there."""
        try:
            if self.alive:
                os.kill(self.pid, signal_number)
                return True
        except ProcessLookupError:
            pass
        return False


def die_with_parent(parent: int) -> None:
    """Have this process SIGKILLed when `parent` dies, even while it is stuck in native code. Call it first thing.

    The request follows the parent's *thread* that forked, hence the main thread of server and supervisor fork.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:  # no such request on macOS: look from a thread
        threading.Thread(target=_die_when_adopted, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for as long as ranks are being ended: people press it again when nothing seems to happen.

    For clean-up of a bounded time only, and for code that starts no process, which would inherit this. In threads
    other than the main one, which never get a KeyboardInterrupt, it does nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None: not Python's to restore
        yield
        return
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # pressed again on the way here: that one is answered already
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def write_json(path: Path, value) -> None:
    """Write JSON under a temporary name, then rename: a reader sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read_json(path: Path):
    """The value in a JSON file, None when the file is not there or was cut off."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _start_time(pid: int) -> str | None:
    """Start time of a running process; None when there is none of that pid, or a zombie."""
    if sys.platform == "linux":
        try:
            text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()  # the name in parentheses may itself hold spaces and parentheses
        return None if fields[0] in "ZX" else fields[19]
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.Error:
        return None


def _die_when_adopted(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
