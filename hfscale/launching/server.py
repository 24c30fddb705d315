"""The warm server: a clean process with the libraries loaded, from which all supervisors and ranks are forked.

Ranks must not fork from the caller: once a caller has run one multi-threaded operation, or has touched a GPU, its
children hang or fail (pytorch#17199). Nothing ever runs here, so a fork of this process is as good as a fresh
interpreter, and some six seconds faster. It is not multiprocessing's forkserver, which hands its alive pipe to every
child, so that it outlives a killed caller, and which re-imports the caller's script.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from pathlib import Path

from hfscale.errors import HfscaleError
from hfscale.launching.channel import keep_private, private_pair, receive_message, send_message
from hfscale.launching.failure import SIGNAL_HINTS

PRELOAD = (
    "torch",
    "torch.distributed",
    "accelerate",
    "transformers.trainer",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
    "transformers.distributed",
    "datasets",
    "cloudpickle",
    "safetensors.torch",
    "hfscale.launching.supervisor",
    "hfscale.training.rank",
)

# Set before the libraries load. A thread in the server would be missing in its forks, with its locks still taken:
# OpenBLAS starts one per core, the allocator inside pyarrow one for its housekeeping. Progress bars of ranks would
# fill their logs.
SERVER_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}

# Libraries read these when they are imported, so that a later change has no effect in a process that has them loaded.
READ_AT_IMPORT = (
    *(
        "HF_",
        "HUGGINGFACE_",
        "TRANSFORMERS_",
        "CUDA_",
        "NVIDIA_",
        "TORCH_",
        "PYTORCH_",
        "OMP_",
        "MKL_",
        "OPENBLAS_",
        "KMP_",
    ),
    *("LD_", "PYTHONPATH", "PYTHONHASHSEED", "XDG_CACHE_HOME"),
)

IDLE_SECONDS = 15 * 60
START_SECONDS = 120
_READY, _FORK, _RETIRE = b"r", b"f", b"q"


# -- in the caller ----------------------------------------------------------------------------------------------


def fork_supervisor(request: dict) -> tuple[int, socket.socket]:
    """Have a supervisor forked for `request`; returns its pid and our end of its socket.

    The socket is the supervisor's life line: when our end closes, however we die, it ends its ranks and itself. Where
    it reads as ended, the supervisor is gone.
    """
    for attempt in (1, 2):
        server = _warm_server()
        with contextlib.suppress(ConnectionError):
            if answer := server.fork_supervisor(request):
                return answer
        # It ended between our look and our request, by idleness or by force.
        if attempt == 2:
            raise HfscaleError(f"The process that supervises ranks ended at once. {server.last_words()}")
    raise AssertionError("unreachable")


def warm_up(block: bool = False) -> None:
    """Start the server if none runs; it loads its libraries in the background. `block` waits until it is ready."""
    server = _warm_server()
    if block:
        server.wait_ready()


class WarmServer:
    """The caller's side of one server process."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS):
        self.fingerprint = import_fingerprint()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server; it has no name, so nothing is left behind
        self._socket, theirs = private_pair()
        self._lock = threading.Lock()
        self._life_lines: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # of the launches that it has forked
        self._ready = False
        package_parent = str(Path(__file__).resolve().parents[2])
        code = (  # the server imports this package from where the caller has it, installed or not
            f"import sys; sys.path[:0] = [] if {package_parent!r} in sys.path else [{package_parent!r}]; "
            f"from hfscale.launching.server import main; main({theirs.fileno()}, {idle_seconds})"
        )
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                code,
            ],  # -P: a random.py in the working directory must not shadow the library's
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=os.environ | SERVER_ENVIRONMENT,
            start_new_session=True,  # a terminal's Ctrl-C goes to the caller alone, which ends its ranks in order
        )
        theirs.close()

    @property
    def usable(self) -> bool:
        return self.process.poll() is None and self.fingerprint == import_fingerprint()

    def wait_ready(self) -> None:
        """Wait until the libraries are loaded; raises HfscaleError with what it wrote when the start fails."""
        with self._lock:
            if self._ready:
                return
            readable, _, _ = select.select([self._socket], [], [], START_SECONDS)
            if not readable:
                raise HfscaleError(
                    f"The server that starts ranks was not ready after {START_SECONDS} s. {self.last_words()}"
                )
            if self._socket.recv(1) != _READY:
                raise HfscaleError(f"The server that starts ranks failed to start. {self.last_words()}")
            self._ready = True

    def fork_supervisor(self, request: dict) -> tuple[int, socket.socket] | None:
        """pid and socket of a new supervisor, None when the server is gone."""
        self.wait_ready()
        ours, theirs = private_pair()
        with self._lock:
            socket.send_fds(self._socket, [_FORK], [theirs.fileno()])
        theirs.close()
        try:
            send_message(ours, request)
            hello = receive_message(ours)
        except BaseException:  # a notebook keeps the frames of an error, and the life line would stay open with them
            ours.close()
            raise
        self._life_lines.add(ours)
        return (hello["pid"], ours) if hello else None

    def retire(self) -> None:
        """Let it end with its last supervisor; our end stays open, so that its launches still end with us."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(_RETIRE)

    def close(self) -> None:
        """End it, and with it all launches that still run; those hear of it first, so that they can write it down."""
        for end in list(self._life_lines):
            with contextlib.suppress(OSError):  # of a launch that is over
                end.shutdown(socket.SHUT_WR)
        self._socket.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        """How it ended, if it has, and what it wrote; in sentences, for a message."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)  # its end of the socket closes a moment before
        code = self.process.returncode
        end = ""
        if code is not None and code < 0:
            end = f"It was killed by signal {-code}: {SIGNAL_HINTS.get(-code, 'by somebody')}. "
        wrote = self.log_tail()
        return f"{end}It wrote: {wrote}" if wrote else f"{end}It wrote nothing. Please try once more."

    def log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:].strip()


def import_fingerprint() -> dict[str, str]:
    """The variables that libraries read at import, as they are now."""
    return {name: value for name, value in os.environ.items() if name.startswith(READ_AT_IMPORT)}


_lock = threading.Lock()
_current: WarmServer | None = None
_retired: list[WarmServer] = []  # of an older environment, with launches that still run


def _warm_server() -> WarmServer:
    """The caller's one server: a new one when it has ended, or variables that count at import have changed."""
    global _current
    with _lock:
        _retired[:] = [server for server in _retired if server.process.poll() is None]
        if _current is not None and not _current.usable:
            _current.retire()
            _retired.append(_current)
            _current = None
        if _current is None:
            _current = WarmServer()
        _close_first()
        return _current


def _close_all() -> None:
    """At the end of the interpreter. Ctrl-C is ignored from here on: there is nothing left to interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for server in [*_retired, *([_current] if _current else [])]:
        server.close()


def _close_first() -> None:
    """Have `_close_all` called before the clean-ups of libraries: torch's is slow, and complains when interrupted."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # the last one registered is called first


def _forget_in_forked_child() -> None:
    """A process forked from the caller has no part in the caller's server: it starts one of its own."""
    global _current, _lock
    _lock = threading.Lock()  # another thread may have held it at the moment of the fork
    _current = None
    _retired.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_forked_child)


# -- in the server ----------------------------------------------------------------------------------------------


def main(caller_fd: int, idle_seconds: float) -> None:
    """The server process: load the libraries, then fork supervisors until the caller is gone."""
    caller = keep_private(socket.socket(fileno=caller_fd))
    preload()
    gc.collect()
    gc.freeze()  # collections in the forks then leave the shared pages alone
    caller.sendall(_READY)
    serve(caller, idle_seconds)


def preload() -> None:
    """Import what ranks need. A module that fails to load here is only slower there, where its error can be shown.

    Complaints go to the server's log, which a test holds empty.
    """
    for name in PRELOAD:
        try:
            importlib.import_module(name)
        except Exception:
            print(f"Not preloaded: {name}", file=sys.stderr)
            traceback.print_exc()
    tasks = Path("/proc/self/task")
    if tasks.is_dir() and len(list(tasks.iterdir())) > 1:
        print("A preloaded module has started a thread; forks of this process may hang in it.", file=sys.stderr)
    import torch

    if torch.cuda.is_initialized():  # its forks could not use a GPU; none of our own preloads does this
        print("CUDA was initialised by a preloaded module.", file=sys.stderr, flush=True)
        os._exit(1)


def serve(caller: socket.socket, idle_seconds: float) -> None:
    children: set[int] = set()
    last_use, retired = time.monotonic(), False
    while True:
        wait = 0.2 if children else max(0.0, last_use + idle_seconds - time.monotonic())
        readable, _, _ = select.select([caller], [], [], wait)
        _reap(children)
        if readable:
            message, fds, _, _ = socket.recv_fds(caller, 1, 1)
            if message == _FORK:
                children.add(_fork_supervisor(socket.socket(fileno=fds[0])))
            elif message == _RETIRE:
                retired = True
            else:
                return _outlast(children)
        if children:
            last_use = time.monotonic()
        elif retired or time.monotonic() - last_use >= idle_seconds:
            return None


def _fork_supervisor(control: socket.socket) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        control.close()
        return pid
    try:
        from hfscale.launching.supervisor import supervise

        supervise(control, server)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _outlast(children: set[int], seconds: float = 2.0) -> None:
    """The caller is gone: give supervisors a moment to end their ranks and say so. They die with us at the latest."""
    end = time.monotonic() + seconds
    while children and time.monotonic() < end:
        time.sleep(0.02)
        _reap(children)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        if os.waitpid(pid, os.WNOHANG)[0]:
            children.discard(pid)
