"""hs.launch: any function in real ranks, with its values back; and the handle behind every launch of the kit."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hfscale.errors import HfscaleError, LaunchError
from hfscale.hardware import resolve_device, usable_cores
from hfscale.launching import folders
from hfscale.launching.channel import send_message
from hfscale.launching.failure import read_failure
from hfscale.launching.payload import pack
from hfscale.launching.processes import read_json, without_interrupts
from hfscale.launching.request import LaunchRequest
from hfscale.launching.server import fork_supervisor, warm_up

PRECISIONS = ("no", "bf16", "fp16")
INTERRUPT_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL when the user has pressed Ctrl-C."""


class Results:
    """What the ranks returned, in rank order: `by_rank`, and in `logs` what each of them printed."""

    def __init__(self, by_rank: list, logs: list[str] | None = None):
        self.by_rank = by_rank
        self.logs = logs or []

    def __len__(self) -> int:
        return len(self.by_rank)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.by_rank)

    def __getitem__(self, rank: int) -> Any:
        return self.by_rank[rank]

    def __repr__(self) -> str:
        return "\n".join(f"rank {rank}: {value!r}" for rank, value in enumerate(self.by_rank))


def launch(
    fn: Callable, *args: Any, world_size: int = 2, device: str = "auto", timeout: float | None = None
) -> Results:
    """Call `fn(*args)` in `world_size` real processes that share a process group, and return their values.

    fn may be defined in a notebook cell or a script; it runs in fresh processes, so that what it assigns stays there.
    Inside, `torch.distributed` is initialised (gloo on CPU, NCCL on GPUs), also for a single rank. Keywords go by
    functools.partial. device: "cpu", "cuda" with one GPU for each rank, or "auto". timeout: seconds until the launch
    is given up.

    Raises HfscaleError before anything starts when the arguments make no sense, LaunchError when a rank fails, and
    passes KeyboardInterrupt on, after all ranks have been ended.
    """
    check_function(fn)
    device = check_placement(world_size, device)
    check_timeout(timeout)
    payload = pack(fn, args, {})
    folder = folders.new_run_folder("launch")
    try:
        launched = _start(payload, folder, world_size=world_size, device=device, timeout=timeout)
        launched.wait()
    except BaseException:  # Ctrl-C may come at any moment, before we have the handle too
        with without_interrupts():
            for started in [one for one in _running if one.folder == folder]:
                started.stop(grace=INTERRUPT_GRACE)
        raise
    results = launched.results()
    shutil.rmtree(folder, ignore_errors=True)  # the values are here now; after a failure the folder stays
    return results


def start_launch(
    fn: Callable | str,
    args: tuple = (),
    kwargs: dict | None = None,
    *,
    world_size: int,
    folder: Path,
    device: str = "auto",
    threads: int | None = None,
    precision: str = "no",
    timeout: float | None = None,
    values: str = "pickle",
) -> Launch:
    """Start `fn(*args, **kwargs)` in `world_size` ranks and return at once.

    fn: a callable, or "module:function" to leave its import to the ranks. folder: an existing folder for everything
    that the launch writes. threads: for each rank; by default the usable cores, shared. precision: "no", "bf16" or
    "fp16", for accelerate. values: "pickle", for `results()`, or "json", which also collects them in the folder's
    result.json.
    """
    entry = fn if isinstance(fn, str) else None
    if entry is None:
        check_function(fn)
    device = check_placement(world_size, device)
    check_timeout(timeout)
    check_threads(threads)
    if precision not in PRECISIONS:
        raise HfscaleError(f"precision={precision!r} is unknown to a launch: choose one of {', '.join(PRECISIONS)}.")
    payload = pack(None if entry else fn, args, kwargs or {})
    options = {"threads": threads, "precision": precision, "timeout": timeout, "entry": entry, "values": values}
    return _start(payload, folder, world_size=world_size, device=device, **options)


def default_threads(world_size: int) -> int:
    """Threads of one rank: the usable cores shared out, at least one."""
    return max(1, usable_cores() // world_size)


class Launch:
    """The caller's handle on one launch. Ends with the caller; a handle that is dropped lets its launch go on."""

    def __init__(self, request: LaunchRequest, pid: int, control: socket.socket):
        self.request, self.pid = request, pid
        self.folder, self.world_size, self.device = Path(request.folder), request.world_size, request.device
        self._control = control
        self._finished = False
        self._stopping = threading.Lock()
        _running.add(self)

    def poll(self) -> bool:
        """Whether it is over, however it went."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over, at most `timeout` seconds; returns whether it is."""
        if not self._finished:
            poller = select.poll()
            poller.register(self._control, select.POLLIN)
            # The supervisor never writes here after its greeting: readable means closed, and closed means gone.
            self._finished = bool(poller.poll(None if timeout is None else max(0, timeout) * 1000))
            if self._finished:
                _running.discard(self)
        return self._finished

    def stop(self, grace: float = 3.0) -> None:
        """End all ranks: SIGTERM, and after `grace` seconds SIGKILL. Returns when they are gone; may be repeated."""
        with self._stopping:
            try:
                if not self.poll():
                    send_message(self._control, {"grace": grace})
                    self.wait(grace + 1.0)
            except ConnectionError:
                pass  # it has ended meanwhile
            finally:
                if not self._finished:  # no answer, or a second Ctrl-C: the closed life line ends it at once
                    with contextlib.suppress(OSError):
                        self._control.shutdown(socket.SHUT_WR)
                    self.wait(2.0)

    @property
    def state(self) -> str:
        """ "running", "finished" (every rank returned), "failed" or "stopped"."""
        if not self.poll():
            return "running"
        return (read_json(self.folder / folders.OUTCOME) or {"state": "failed"})["state"]

    def results(self) -> Results:
        """What the ranks returned, waiting if need be. Raises LaunchError when a rank failed, or it was stopped."""
        self.wait()
        if self.state != "finished":
            raise read_failure(self.folder)
        logs = [folders.tail(self.folder / f"rank{rank}.log", lines=1000) for rank in range(self.world_size)]
        if self.request.values == "json":
            return Results(read_json(self.folder / folders.RESULT)["by_rank"], logs)
        return Results([self._value(rank) for rank in range(self.world_size)], logs)

    def _value(self, rank: int) -> Any:
        try:
            return pickle.loads(self.request.value_path(rank).read_bytes())
        except Exception as error:
            raise LaunchError(
                f"the value that rank {rank} returned cannot be read here ({type(error).__name__}: {error})",
                hint="return plain values, arrays or tensors",
                log_path=self.folder / f"rank{rank}.log",
            ) from error


# Launches whose handle nobody holds must not be collected: their socket is their life line.
_running: set[Launch] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # they belong to the process that started them


def check_function(fn: Any) -> None:
    if not callable(fn):
        raise HfscaleError(
            f"launch takes a function and then its arguments: launch(fn, 1, 2). Got a {type(fn).__name__}; "
            "did you write launch(fn()) for launch(fn)?"
        )


def check_placement(world_size: Any, device: str) -> str:
    """The device of a launch; raises HfscaleError when it cannot work here."""
    if not hasattr(os, "fork"):
        raise HfscaleError(
            f"Ranks need fork(), which {sys.platform} does not have. On Windows use WSL2 (Windows Subsystem for "
            "Linux), where hfscale works as on Linux."
        )
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise HfscaleError(
            f"world_size={world_size!r}: expected how many ranks to start, a whole number of at least 1."
        )
    return resolve_device(device, world_size)


def check_timeout(timeout: Any) -> None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        raise HfscaleError(f"timeout={timeout!r}: expected a positive number of seconds, or None for no limit.")


def check_threads(threads: Any) -> None:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise HfscaleError(
            f"threads={threads!r}: expected how many CPU threads each rank has, a whole number of at least 1, "
            "or None to share out the cores."
        )


def _start(
    payload: bytes, folder: Path, *, world_size: int, device: str, threads: int | None = None, **options
) -> Launch:
    folder = Path(folder).absolute()
    threads = threads or default_threads(world_size)
    placement = {"world_size": world_size, "device": device, "threads": threads}
    with folders.starting(folder):
        with folders.writing(folder):
            (folder / folders.PAYLOAD).write_bytes(payload)
        warm_up(block=True)  # its time does not count: the clock of the launch starts now
        request = LaunchRequest(folder=str(folder), **placement, **{"precision": "no", **options}, started=time.time())
        facts = {"started": request.started, "precision": request.precision, "timeout": request.timeout}
        with folders.writing(folder):
            folders.mark(folder, **placement, **facts)
        for other in list(_running):  # let go of those that have ended meanwhile
            other.poll()
        pid, control = fork_supervisor(request.to_dict())
        return Launch(request, pid, control)
