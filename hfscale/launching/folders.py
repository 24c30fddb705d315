"""The folder of a launch: where it is made, what its files are called, when it is removed."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from hfscale.errors import HfscaleError
from hfscale.launching.processes import Process, read_json, without_interrupts, write_json

MARKER = "launch.json"  # written first: a folder without it is not ours, and is never removed
OUTCOME = "outcome.json"  # written last, by the supervisor
RESULT = "result.json"
RECIPE = "recipe.json"
PAYLOAD = "payload.pkl"
SUPERVISOR = "supervisor.pid"

PROBE_BYTES = 64 * 2**10
"""Written and thrown away to see whether a folder takes data: on a full disk an empty file can still be made."""


def new_run_folder(label: str) -> Path:
    """A new, empty, marked folder under the runs root, named by time and a short hash. `label` says what it is for.

    Old finished folders beyond the newest HFSCALE_KEEP_RUNS (default 50) are removed.
    """
    root = runs_root()
    prune(root)
    while True:
        folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
        with writing(root):
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            try:
                mark(folder, label=label, caller=asdict(Process.current()))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return folder


def mark(folder: Path, **facts) -> None:
    """Add facts to the folder's marker; the first call makes it a run folder."""
    before = read_json(folder / MARKER) or {"hfscale": _version(), "created": time.time()}
    write_json(folder / MARKER, before | facts)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns the OSError of a disk that is full, or may not be written, into a sentence."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise HfscaleError(
            f"The run folder cannot be written: {reason}. Make room in {folder}, or set HFSCALE_RUNS to a folder "
            "elsewhere that you can write to."
        ) from error


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[None]:
    """Writes the outcome of a launch that ends in here, before it has a supervisor that would do so."""
    try:
        yield
    except BaseException as error:
        with without_interrupts(), contextlib.suppress(OSError):
            (folder / PAYLOAD).unlink(missing_ok=True)
            if not (folder / OUTCOME).exists():
                write_json(folder / OUTCOME, _never_started(error))
        raise


def runs_root() -> Path:
    """HFSCALE_RUNS, by default ./hfscale-runs; a temporary folder, with a warning, where that cannot be written."""
    root = Path(os.environ.get("HFSCALE_RUNS") or "hfscale-runs").expanduser().absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            return root
    except OSError as error:
        fallback = Path(tempfile.gettempdir()) / f"hfscale-runs-{os.getuid()}"
        with contextlib.suppress(OSError):  # who writes there next says why that cannot be
            fallback.mkdir(exist_ok=True, mode=0o700)
        warnings.warn(
            f"Runs cannot be written to {root} ({error.strerror}); they go to {fallback}. "
            "Set HFSCALE_RUNS to a folder that you can write to.",
            stacklevel=2,
        )
        return fallback


def run_folders(root: Path) -> list[Path]:
    """The marked folders under `root`, newest first."""
    if not root.is_dir():
        return []
    markers = {folder: read_json(folder / MARKER) for folder in root.iterdir()}
    # Other programs have a launch.json too, editors for instance.
    ours = [(m["created"], folder) for folder, m in markers.items() if isinstance(m, dict) and "hfscale" in m]
    return [folder for _, folder in sorted(ours, reverse=True)]


def prune(root: Path) -> None:
    """Remove the oldest finished run folders, so that experiments do not fill the disk."""
    finished = [folder for folder in run_folders(root) if _is_over(folder)]
    for folder in finished[_kept_runs() :]:
        shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> dict[str, Process]:
    """The supervisor and the ranks that run, or ran, in `folder`, by the names of their records."""
    found = {path.stem: Process.read(path) for path in folder.glob("*.pid")}
    return {name: process for name, process in found.items() if process}


def is_running(folder: Path) -> bool:
    return any(process.alive for process in processes_of(folder).values())


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log, whatever bytes were printed to it."""
    try:
        with open(path, "rb") as log:
            log.seek(max(0, path.stat().st_size - 500 * lines))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _never_started(error: BaseException) -> dict:
    """The outcome of a launch without a supervisor, in the form that a supervisor gives it."""
    failed = isinstance(error, Exception)
    return {
        "state": "failed" if failed else "stopped",
        "reason": None if failed else "it was stopped before its ranks were started",
        "launcher_error": str(error) if failed else None,
        "exits": {},
        "seconds": 0.0,
    }


def _is_over(folder: Path) -> bool:
    if is_running(folder):
        return False
    # A launch that has not come as far as its supervisor looks like one that died before: give it ten minutes.
    with contextlib.suppress(FileNotFoundError):  # another process prunes at the same time
        return (folder / OUTCOME).exists() or time.time() - (folder / MARKER).stat().st_mtime > 600
    return False


def _kept_runs() -> int:
    text = os.environ.get("HFSCALE_KEEP_RUNS", "50").strip()
    if not text.isdecimal():
        raise HfscaleError(
            f"HFSCALE_KEEP_RUNS is {text!r}: expected how many finished run folders to keep, such as 50."
        )
    return int(text)


def _version() -> str:
    try:
        return importlib.metadata.version("hfscale")
    except importlib.metadata.PackageNotFoundError:  # used from a checkout that is not installed
        return "unknown"
