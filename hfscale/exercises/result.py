"""What an exercise's check says: not attempted yet, right, or what is wrong, in words of the domain."""

from __future__ import annotations

import dis
import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hfscale.errors import LaunchError

SECONDS = 60.0
"""Limit of one check: an answer whose ranks wait for each other for ever is ended, and told so."""

WORDS = {None: "not attempted yet", True: "right", False: "not yet"}


class NotAttempted(Exception):
    """The stub is still a stub."""


class Wrong(Exception):
    """The answer is wrong; the message says how. May be raised in a rank."""


@dataclass(frozen=True)
class Checked:
    """done: True, False, or None for not attempted. message: one or two sentences."""

    done: bool | None
    message: str

    def __str__(self) -> str:
        return f"{WORDS[self.done]}: {self.message}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p><strong>{WORDS[self.done]}</strong>: {html.escape(self.message)}</p>"


def checked(check: Callable[[], str], task: str) -> Checked:
    """Run `check`, which returns what is right about an answer, or raises NotAttempted or Wrong.

    task: what is to be done, shown while it has not been attempted.
    """
    try:
        return Checked(True, check())
    except (NotAttempted, NotImplementedError):
        return Checked(None, task)
    except Wrong as wrong:
        return Checked(False, str(wrong))
    except LaunchError as failure:
        if failure.cause.startswith(("NotAttempted", "NotImplementedError")):
            return Checked(None, task)
        kind, _, message = failure.cause.partition(": ")
        return Checked(False, message if kind == Wrong.__name__ else _failed(failure))


def attempt(fn: Callable, *args: Any) -> Any:
    """`fn(*args)`; raises NotAttempted for a stub (empty body, or `...` returned), Wrong if nothing comes back."""
    require_attempt(fn)
    value = fn(*args)
    if value is ...:
        raise NotAttempted
    if value is None:
        raise Wrong(f"{getattr(fn, '__name__', 'your function')} returned nothing: is there a return at its end?")
    return value


def require_attempt(fn: Callable) -> None:
    """Raises NotAttempted if fn's body is empty: one that uses no name, not even its own arguments, does nothing."""
    code = getattr(fn, "__code__", None)
    if code is not None and not code.co_names and not code.co_freevars and _constants_only(code):
        raise NotAttempted


def _constants_only(code) -> bool:
    return not any(instruction.opname.startswith(("LOAD_FAST", "CALL")) for instruction in dis.get_instructions(code))


def _failed(failure: LaunchError) -> str:
    """The learner's own error: who, what, and the last line of theirs."""
    who = "your function" if failure.rank is None else f"your function failed on rank {failure.rank}"
    # Where there is a hint, a rank has lost another one, and the cause is gloo's or NCCL's, in their words.
    what = (failure.hint or failure.cause.splitlines()[0]).rstrip(".")
    where = f" In line {failure.frames[-1].line}: {failure.frames[-1].code}" if failure.frames else ""
    return f"{who}: {what}.{where}"
