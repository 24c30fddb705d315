"""How far a run is, while somebody waits for it: one line in a terminal, one line in a notebook, otherwise nothing."""

from __future__ import annotations

import html
import sys
import time
from typing import TYPE_CHECKING

from hfscale.launching.processes import without_interrupts

if TYPE_CHECKING:
    from hfscale.launching.run import Run

INTERVAL = 0.2


def follow(run: Run, timeout: float | None = None) -> None:
    """Show the run's progress until it is over, at most `timeout` seconds. The last line says how it went."""
    recipe = run.recipe
    started = time.monotonic()
    with progress_line(f"{recipe.model} · {recipe.strategy}", recipe.steps) as line:
        while not run._wait(INTERVAL):
            if timeout is not None and time.monotonic() - started > timeout:
                break
            last = run.last_step() or {}
            line.update(last.get("step", 0), f"loss {last['loss']:.4f}" if "loss" in last else "starting")
        last = run.last_step() or {}
        loss = f", loss {last['loss']:.4f}" if "loss" in last else ""
        line.update(last.get("step", 0), f"{run.status} after {time.monotonic() - started:.1f} s{loss}")


def progress_line(title: str, total: int) -> ProgressLine:
    """The progress line that fits where this process shows its output."""
    if _in_notebook():
        return NotebookLine(title, total)
    return TerminalLine(title, total) if sys.stderr.isatty() else ProgressLine(title, total)


class ProgressLine:
    """Shows nothing: output that goes to a file or a pipe. A context manager; `update` says how far and what."""

    def __init__(self, title: str, total: int):
        self.title, self.total = title, total

    def __enter__(self):
        return self

    def __exit__(self, *exc_info) -> None:
        pass

    def update(self, done: int, note: str) -> None:
        pass


class TerminalLine(ProgressLine):
    """One line of rich on stderr, so that stdout holds results only."""

    def __enter__(self):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(self.title, total=self.total, note="starting")
        self._progress.start()
        return self

    def __exit__(self, *exc_info) -> None:
        with without_interrupts():  # a second Ctrl-C in here would leave the terminal without its cursor
            self._progress.stop()

    def update(self, done: int, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note)


class NotebookLine(ProgressLine):
    """One HTML widget. Only its value changes, and only from the waiting thread: the cell's output stays the same.

    The value at the moment of display is a constant, since that is what the notebook's text form keeps.
    """

    def __enter__(self):
        from IPython.display import display
        from ipywidgets import HTML

        self._widget = HTML(value="starting…")
        display(self._widget)
        return self

    def update(self, done: int, note: str) -> None:
        bar = f'<progress value="{done}" max="{self.total}"></progress>'
        self._widget.value = f"{html.escape(self.title)} {bar} {done}/{self.total} {html.escape(note)}"


def _in_notebook() -> bool:
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return False
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is not None
