"""Why a launch gave no result, read from its folder: the first failing rank, in the user's terms."""

from __future__ import annotations

import linecache
import re
import shutil
import signal
import site
import sys
import sysconfig
from pathlib import Path

from hfscale.errors import Frame, LaunchError
from hfscale.launching import folders
from hfscale.launching.processes import read_json

SAME_MOMENT = 2.0
"""Seconds. A killed rank takes the others with it: their errors come at once, or before its end is noticed."""

LONGEST_MESSAGE = 500
"""Characters of an exception's text that a report shows. All of it stands in the rank's traceback and log."""

ROOM_NEEDED = 2**20
"""Bytes. A disk with less is full: what a run would have said about its end could not be written."""

SIGNAL_HINTS = {
    signal.SIGKILL: "probably out of memory (look for 'Out of memory' in the system's log), or somebody's kill -9",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "often a full /dev/shm, or memory that cannot be had",
    signal.SIGABRT: "native code gave up; its log says why",
}
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
_STACK_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


def read_failure(folder: Path) -> LaunchError:
    """The LaunchError of a launch that is over and has no result."""
    if not (folder / folders.MARKER).exists():
        return LaunchError(
            f"The run folder {folder} is gone: somebody has removed it while the run was using it, and nothing is left "
            "of the run"
        )
    outcome = read_json(folder / folders.OUTCOME)
    world_size = (read_json(folder / folders.MARKER) or {}).get("world_size", 0)
    errors = {rank: error for rank in range(world_size) if (error := read_json(folder / f"error{rank}.json"))}
    if outcome is None:
        return _lost_supervisor(folder, errors)
    if outcome["state"] == "stopped":
        return LaunchError(f"The launch has no result: {outcome['reason']}.", log_path=folder / "rank0.log")
    crashes = _crashes(outcome["exits"], errors, world_size, folder)
    first_error = min(errors.values(), key=lambda error: error["time"], default=None)
    if crashes:
        rank, crash = min(crashes.items(), key=lambda pair: pair[1]["time"])
        if first_error is None or crash["time"] < first_error["time"] + SAME_MOMENT:
            return _from_crash(rank, crash["code"], folder)
    if first_error is not None:
        return _from_error(first_error, folder, world_size)
    if outcome["reason"] == "time limit":
        return _from_time_limit(outcome, folder, world_size)
    cause = (
        f"The ranks could not be started: {outcome['launcher_error']}"
        if outcome["launcher_error"]
        else "The launch failed"
    )
    log = folder / "supervisor.log"
    return LaunchError(cause, log_path=log if log.exists() else None, log_tail=folders.tail(log))


def _crashes(exits: dict, errors: dict, world_size: int, folder: Path) -> dict[int, dict]:
    """Ranks that ended without a value and without a word, save those that the launcher itself ended with SIGTERM."""
    return {
        rank: seen
        for rank in range(world_size)
        if (seen := exits.get(str(rank)))
        and rank not in errors
        and seen["code"] not in (-signal.SIGTERM, None)
        and not any((folder / f"result{rank}.{kind}").exists() for kind in ("pkl", "json"))
    }


def _from_error(error: dict, folder: Path, world_size: int) -> LaunchError:
    message = error["message"].strip()
    hint = None
    if any(sign in message for sign in _LOST_PEER):
        hint = _lost_peer_hint(error["rank"], folder, world_size)
    return LaunchError(
        f"{error['type']}: {message if len(message) <= LONGEST_MESSAGE else message[:LONGEST_MESSAGE] + ' …'}",
        rank=error["rank"],
        frames=_user_frames(error["frames"]),
        hint=hint,
        log_path=folder / f"rank{error['rank']}.log",
        traceback=error["traceback"],
    )


def _lost_peer_hint(rank: int, folder: Path, world_size: int) -> str | None:
    returned = [other for other in range(world_size) if other != rank and _has_returned(folder, other)]
    if not returned:
        return None
    return (
        f"{_ranks(returned)} had already returned, while rank {rank} was waiting for "
        f"{'it' if len(returned) == 1 else 'them'} in a collective. "
        "All ranks must call the same collectives in the same order."
    )


def _from_crash(rank: int, code: int, folder: Path) -> LaunchError:
    log = folder / f"rank{rank}.log"
    if code >= 0:
        cause = f"it ended with exit code {code} and without an error"
    else:
        cause = f"it was killed by signal {-code} ({_signal_name(-code)})"
    # After a crash in native code faulthandler has written the Python stack, innermost line first.
    said, fatal, crash = folders.tail(log, lines=200).partition("Fatal Python error")
    stack = [match.groupdict() | {"code": ""} for match in _STACK_LINE.finditer(crash)][::-1]
    tail = "\n".join([*said.splitlines()[-10:], *([fatal + crash.splitlines()[0]] if fatal else [])])
    return LaunchError(
        cause,
        rank=rank,
        frames=_user_frames(stack),
        hint=SIGNAL_HINTS.get(-code),
        log_path=log,
        log_tail=tail,
        traceback=crash,
    )


def _from_time_limit(outcome: dict, folder: Path, world_size: int) -> LaunchError:
    limit = (read_json(folder / folders.MARKER) or {}).get("timeout")
    states = [f"rank {rank} {_last_place(folder, rank)}" for rank in range(world_size)]
    hint = None
    if any(_has_returned(folder, rank) for rank in range(world_size)):
        hint = (
            "All ranks must call the same collectives in the same order: a rank that waits in one for a rank that has "
            "returned waits for ever."
        )
    cause = f"No result after {limit:g} s, so all ranks were ended: {'; '.join(states)}."
    return LaunchError(cause, hint=hint, log_path=folder / "rank0.log")


def _last_place(folder: Path, rank: int) -> str:
    if _has_returned(folder, rank):
        return "had returned"
    try:
        text = (folder / f"rank{rank}.stack").read_text(errors="replace")
    except OSError:
        return "had not started yet"
    stack = [match.groupdict() for match in _STACK_LINE.finditer(text)]  # innermost first
    if not stack:
        return "did not answer"
    user = next((frame for frame in stack if _is_users(frame["file"])), None)
    inner = stack[0]["function"] if user is None else _calls_before(stack, user)
    where = "" if user is None else f" ({_place(user['file'])}:{user['line']}, {user['function']})"
    return f"was in {inner}{where}"


def _calls_before(stack: list[dict], user: dict) -> str:
    """The function that the user's line has called, or the user's own where it calls nothing in Python."""
    position = stack.index(user)
    called = [frame["function"] for frame in stack[:position] if frame["function"] not in ("wrapper", "inner")]
    return called[-1] if called else user["function"]


def _lost_supervisor(folder: Path, errors: dict) -> LaunchError:
    """Neither finished nor failed: the process that would have said so is gone, and took its ranks with it."""
    full = shutil.disk_usage(folder).free < ROOM_NEEDED
    return LaunchError(
        "The process that supervised the ranks ended without a word, and its ranks ended with it",
        hint="the disk is full" if full else "probably out of memory, or somebody's kill -9",
        log_path=folder / "supervisor.log",
        log_tail=folders.tail(folder / "supervisor.log", lines=5),
        traceback=next((error["traceback"] for error in errors.values()), ""),
    )


def _user_frames(frames: list[dict]) -> tuple[Frame, ...]:
    """The user's own lines. An error that has none, as in a recipe's run, keeps its two innermost."""
    inner = [frame for frame in frames if Path(frame["file"]).parent != Path(__file__).parent]
    chosen = [frame for frame in inner if _is_users(frame["file"])] or inner[-2:]
    # A notebook's cells have no file that a rank could read; this process knows their source.
    return tuple(
        Frame(
            _place(f["file"]),
            int(f["line"]),
            f["function"],
            f["code"] or linecache.getline(f["file"], int(f["line"])).strip(),
        )
        for f in chosen
    )


def _is_users(file: str) -> bool:
    if file.startswith("<"):  # <frozen importlib>, <string>
        return False
    path = Path(file)
    if "site-packages" in path.parts or "dist-packages" in path.parts:
        return False
    return not any(path.is_relative_to(root) for root in _library_roots())


def _library_roots() -> list[Path]:
    package = Path(__file__).resolve().parents[1]
    packages = [*(site.getsitepackages() if hasattr(site, "getsitepackages") else []), sysconfig.get_path("purelib")]
    return [package, Path(sysconfig.get_path("stdlib")), *map(Path, packages)]


def _place(file: str) -> str:
    """A file, or the cell by its number: the path that IPython gives to a cell differs from kernel to kernel."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
        name = shell.compile.format_code_name(file)
        if name:
            return " ".join(name)
    return file


def _has_returned(folder: Path, rank: int) -> bool:
    return any((folder / f"result{rank}.{kind}").exists() for kind in ("pkl", "json"))


def _ranks(ranks: list[int]) -> str:
    return f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
