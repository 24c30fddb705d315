"""The one family of errors that hfscale raises on purpose: each says what, where, what was expected, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class HfscaleError(Exception):
    """Base class of hfscale's own errors. The message is one or two sentences meant for the person at the keyboard."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the sentence. The frames of the package in between say nothing about what to do."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Frame:
    """One line of a traceback: `place` is a path, or the name of a notebook cell."""

    place: str
    line: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        where = f"  {self.place}:{self.line} in {self.function}"
        return f"{where}\n      {self.code}" if self.code else where


class LaunchError(HfscaleError):
    """A launch that gave no result, told from the first rank that failed.

    rank: the first failing rank, None when no rank is to blame (a stop, a time limit, a lost supervisor).
    cause: one line: the exception's type and message, or the signal that ended the rank.
    frames: the lines of the user's own code, innermost last. traceback: the full text from the rank.
    hint: what to try, where something is known. log_path: what the rank printed.
    """

    def __init__(
        self,
        cause: str,
        *,
        rank: int | None = None,
        frames: tuple[Frame, ...] = (),
        hint: str | None = None,
        log_path: Path | None = None,
        log_tail: str = "",
        traceback: str = "",
    ):
        self.rank, self.cause, self.frames, self.hint = rank, cause, tuple(frames), hint
        self.log_path, self.log_tail, self.traceback = log_path, log_tail, traceback
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [self.cause if self.rank is None else f"Rank {self.rank} failed: {self.cause}"]
        lines += _folded([str(frame) for frame in self.frames])
        if self.log_tail:
            lines += ["The last lines that it wrote:", *(f"    {line}" for line in self.log_tail.splitlines())]
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        if self.log_path:
            lines.append(f"Log: {self.log_path}")
        return "\n".join(lines)


def _folded(lines: list[str], first: int = 2, last: int = 6) -> list[str]:
    """The ends of a long list of frames: an endless recursion has a thousand of them."""
    if len(lines) <= first + last + 1:
        return lines
    return [*lines[:first], f"  … {len(lines) - first - last} more …", *lines[-last:]]
