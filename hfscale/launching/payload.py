"""The user's function and arguments as bytes: cloudpickle sends what a notebook defines by value, with its globals."""

from __future__ import annotations

import functools
import io
import marshal
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from hfscale.errors import HfscaleError

LARGE_PAYLOAD = 32 * 2**20
"""Bytes above which a launch warns: each rank reads and unpickles all of it."""


def pack(function: Callable | None, args: tuple, kwargs: dict) -> bytes:
    """(function, args, kwargs) for the ranks. Raises HfscaleError naming what cannot travel; warns when it is large."""
    try:
        data = _dumps((function, args, kwargs))
    except Exception as error:
        raise HfscaleError(_refusal(function, args, kwargs, error)) from None
    if len(data) > LARGE_PAYLOAD:
        name, size = max(_sizes(function, args, kwargs), key=lambda pair: pair[1], default=("the function", len(data)))
        warnings.warn(
            f"This launch sends {len(data) / 2**20:.0f} MB to each rank, most of it ({size / 2**20:.0f} MB) in {name}. "
            "Build large things inside the function, or load them there from a file.",
            stacklevel=4,
        )
    return data


class _Pickler(cloudpickle.CloudPickler):
    """cloudpickle, keeping the file names of functions that go by value: it blanks them, and tracebacks need them."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            return marshal.loads, (marshal.dumps(obj),)  # the ranks run the same Python
        return super().reducer_override(obj)


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _refusal(function: Callable | None, args: tuple, kwargs: dict, error: Exception) -> str:
    for name, value in _parts(function, args, kwargs):
        reason = _why_not(value)
        if reason:
            return (
                f"Ranks are other processes, and {name} (a {type(value).__name__}) cannot be sent to them: {reason}. "
                "Create it inside the function."
            )
    return f"The function and its arguments cannot be sent to the ranks, which are other processes: {error}."


def _sizes(function: Callable | None, args: tuple, kwargs: dict) -> Iterator[tuple[str, int]]:
    for name, value in _parts(function, args, kwargs):
        yield name, len(_dumps(value))


def _why_not(value: Any) -> str | None:
    try:
        _dumps(value)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _parts(function: Callable | None, args: tuple, kwargs: dict) -> Iterator[tuple[str, Any]]:
    """What travels, with a name for each that the user recognises: arguments, then what the function refers to."""
    while isinstance(function, functools.partial):
        args, kwargs, function = (*function.args, *args), function.keywords | kwargs, function.func
    for position, value in enumerate(args, start=1):
        yield f"argument {position}", value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value
    if isinstance(function, types.MethodType):
        yield f"the object whose method {function.__name__} is called", function.__self__
    elif isinstance(function, types.FunctionType):
        yield from _referred(function, set())
    elif function is not None:
        yield "the callable", function


def _referred(function: types.FunctionType, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Globals, closure variables and defaults of a function, and of the functions among them, innermost first."""
    seen.add(id(function))
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = [("closure variable", name, _content(cell)) for name, cell in closure]
    names = sorted(_global_names(function.__code__) & function.__globals__.keys())
    found += [("global", name, function.__globals__[name]) for name in names]
    found += [("default", repr(value), value) for value in function.__defaults__ or ()]
    for kind, name, value in found:
        if isinstance(value, types.FunctionType) and id(value) not in seen:
            yield from _referred(value, seen)
        yield f"the {kind} {name!r} of {function.__name__}", value


def _global_names(code: types.CodeType) -> set[str]:
    """Names that the code may look up, those of functions defined inside it too."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
