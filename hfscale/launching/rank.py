"""One rank: it joins its group, proves its world size, runs the function, leaves its value or its error in a file."""

from __future__ import annotations

import faulthandler
import importlib
import json
import linecache
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hfscale.errors import HfscaleError
from hfscale.launching.folders import PAYLOAD
from hfscale.launching.processes import Process, die_with_parent, write_json
from hfscale.launching.request import LaunchRequest
from hfscale.training.events import EventWriter

VALUE_LIMIT = 512 * 2**20
"""Bytes of one rank's value. Larger things belong into a file."""

_LAST_FRAMES = 60  # of a traceback; an endless recursion has a thousand


@dataclass(frozen=True)
class RankContext:
    """Who this process is. `started` is time.time() of the launch, from which the times of events count."""

    rank: int
    world_size: int
    device: str
    folder: Path
    started: float


_context: RankContext | None = None


def current_rank() -> RankContext | None:
    """The rank that this process is, None outside of a launch."""
    return _context


def rank_main(request: LaunchRequest, supervisor: int) -> None:
    """The entry point of every rank, in a process just forked from the supervisor."""
    die_with_parent(supervisor)
    _own_signals()
    rank, folder = int(os.environ["RANK"]), Path(request.folder)
    events = EventWriter(folder / f"rank{rank}.jsonl", rank, request.started)
    try:
        _own_output(folder, rank)
        Process.current().write(folder / f"rank{rank}.pid")
        _enter(request, rank, events)
        value = _call(request, folder)
        _save(value, request, rank)
    except BaseException as error:
        _give_up(error, folder, rank, events)
    events.write("end")
    _leave(request)


def _own_signals() -> None:
    """SIGTERM ends a rank at once, also in native code. The handlers inherited from elastic would wait for Python."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _own_output(folder: Path, rank: int) -> None:
    from hfscale.launching.supervisor import redirect_output

    redirect_output(folder / f"rank{rank}.log")
    tempfile.tempdir = None  # back to the user's, from the supervisor's scratch
    faulthandler.enable(file=sys.stderr)
    stacks = open(folder / f"rank{rank}.stack", "w")  # noqa: SIM115 - faulthandler needs it open
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    _keep.append(stacks)


_keep: list = []


def _enter(request: LaunchRequest, rank: int, events: EventWriter) -> None:
    """Threads, random state and the process group; then the proof that the world is the one that was asked for."""
    global _context
    import numpy
    import torch
    import torch.distributed as dist
    from accelerate import PartialState

    torch.set_num_threads(request.threads)  # OMP_NUM_THREADS comes too late for a torch that is already loaded
    numpy.random.seed()  # the server's state would be the same in every rank of every launch
    on_cpu = request.device == "cpu"
    device = "cpu" if on_cpu else f"cuda:{int(os.environ['LOCAL_RANK'])}"
    if on_cpu:
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=torch.device(device))
    PartialState(cpu=on_cpu)
    if dist.get_world_size() != request.world_size:
        raise HfscaleError(f"Asked for {request.world_size} ranks, rank {rank} sees {dist.get_world_size()}.")
    _context = RankContext(rank, request.world_size, device, Path(request.folder), request.started)
    facts = {"pid": os.getpid(), "world_size": dist.get_world_size(), "device": device, "backend": dist.get_backend()}
    events.write("launch", **facts, threads=torch.get_num_threads(), precision=request.precision)


def _call(request: LaunchRequest, folder: Path) -> Any:
    import cloudpickle

    function, args, kwargs = cloudpickle.loads((folder / PAYLOAD).read_bytes())
    if request.entry:
        module, _, name = request.entry.partition(":")
        function = getattr(importlib.import_module(module), name)
    try:
        return function(*args, **kwargs)
    except SystemExit as exit:
        if exit.code in (None, 0) and request.entry is None:
            return None  # an ordinary end of a user's function; a training that leaves like that has no result
        raise


def _save(value: Any, request: LaunchRequest, rank: int) -> None:
    """Write the value for the caller, all of it or nothing."""
    data = _as_json(value) if request.values == "json" else _as_pickle(value, rank)
    if len(data) > VALUE_LIMIT:
        raise HfscaleError(
            f"Rank {rank} returned {len(data) / 2**20:.0f} MB; at most {VALUE_LIMIT / 2**20:.0f} MB travel back. "
            "Write it to a file and return the path, or return a summary."
        )
    path = request.value_path(rank)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _as_json(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except TypeError as error:
        raise HfscaleError(f"The result of a run must be plain data that JSON can hold: {error}.") from error


def _as_pickle(value: Any, rank: int) -> bytes:
    import cloudpickle

    value = _on_cpu(value)
    try:
        return cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise HfscaleError(
            f"Rank {rank} returned a value of type {type(value).__name__} that cannot be sent back ({error}). "
            "Return plain values, arrays or tensors, or write it to a file and return the path."
        ) from error


def _on_cpu(value: Any) -> Any:
    """`value` with GPU tensors copied to main memory, inside lists, tuples and dicts too."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu() if value.is_cuda else value
    if isinstance(value, dict) and type(value) is dict:
        return {key: _on_cpu(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_on_cpu(item) for item in value)
    return value


def _give_up(error: BaseException, folder: Path, rank: int, events: EventWriter) -> NoReturn:
    """Say why and end at once: the user's threads, or a group with a lost member, could hold up an ordinary exit."""
    try:
        _report(error, folder, rank, events)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # a full disk, a folder that is gone
        traceback.print_exc()
    finally:
        os._exit(1)


def _report(error: BaseException, folder: Path, rank: int, events: EventWriter) -> None:
    """Leave the error where the caller finds it, with the source lines that only this process may be able to read."""
    message = _message(error)
    frames = [
        {
            "file": frame.filename,
            "line": frame.lineno,
            "function": frame.name,
            "code": linecache.getline(frame.filename, frame.lineno).strip(),
        }
        for frame in traceback.extract_tb(error.__traceback__)[-_LAST_FRAMES:]
    ]
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr)
    record = {
        "rank": rank,
        "type": type(error).__name__,
        "message": message,
        "time": time.time(),
        "frames": frames,
        "traceback": text,
    }
    write_json(folder / f"error{rank}.json", record)
    events.write("error", type=record["type"], message=message)


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r}) was called, so that there is no result"
    try:
        return str(error)
    except Exception as broken:  # the user's exception class
        return f"(it has no text: its __str__ raised {type(broken).__name__})"


def _leave(request: LaunchRequest) -> None:
    """Leave the process group, but give the others a second first.

    A rank that still reads the last bytes of the last collective would lose them; one that waits for a collective in
    which this rank takes no part any more would wait for ever: with this connection closed it fails at once.
    """
    import torch.distributed as dist

    sys.stdout.flush()
    sys.stderr.flush()
    end = time.monotonic() + 1.0
    while time.monotonic() < end and not all(request.value_path(rank).exists() for rank in request.ranks):
        time.sleep(0.01)
    # Closing NCCL waits for its other members, of which one may be stuck; it may also be closed by the user already.
    if dist.is_initialized():
        leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(5.0)
