"""What happened in a run, as JSON lines: one file for each rank, readable while it is written and for ever after.

Kinds: launch, step, eval, collective, alert, result, error, end. Each line is {"t": seconds since the launch, "rank",
"kind", "step" where there is one, ...}. Readers ignore kinds and keys that they do not know, and a last line that is
cut off.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class EventWriter:
    """Appends the events of one rank to `path`. `started` is the launch's time.time(), from which `t` counts."""

    def __init__(self, path: str | Path, rank: int, started: float):
        self.rank, self.started = rank, started
        # Unbuffered and opened to append: each event is one write, so that other writers and readers see whole lines.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open as long as the rank

    def write(self, kind: str, step: int | None = None, **fields: Any) -> None:
        """Append one event. `fields` are plain JSON values."""
        event: dict[str, Any] = {"t": round(time.time() - self.started, 6), "rank": self.rank, "kind": kind}
        if step is not None:
            event["step"] = step
        self._file.write(json.dumps(event | fields).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def read_events(folder: str | Path, rank: int | None = None) -> list[dict[str, Any]]:
    """The events of a run folder so far: of one rank in their order, or of all ranks ordered by time."""
    paths = sorted(Path(folder).glob("rank*.jsonl")) if rank is None else [Path(folder) / f"rank{rank}.jsonl"]
    events = [event for path in paths for event in _read_lines(path)]
    return events if rank is not None else sorted(events, key=lambda event: event["t"])


def last_event(folder: str | Path, kind: str, rank: int = 0) -> dict[str, Any] | None:
    """The newest event of that kind in the end of the file: cheap enough to ask for several times a second."""
    newest = [
        event for event in _read_lines(Path(folder) / f"rank{rank}.jsonl", last_bytes=2**16) if event["kind"] == kind
    ]
    return newest[-1] if newest else None


def _read_lines(path: Path, last_bytes: int | None = None) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            if last_bytes is not None:
                file.seek(max(0, path.stat().st_size - last_bytes))
            data = file.read()
    except FileNotFoundError:
        return []
    events = []
    for line in data.decode("utf-8", errors="replace").split("\n"):
        try:
            event = json.loads(line)
        except ValueError:  # a rank may die in the middle of a line
            continue
        if isinstance(event, dict) and {"t", "rank", "kind"} <= event.keys():
            events.append(event)
    return events
