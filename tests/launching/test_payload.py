"""What cannot travel to the ranks is named, and so is what is too large."""

import functools
import pickle
import threading

import pytest

from hfscale.errors import HfscaleError
from hfscale.launching import payload
from hfscale.launching.payload import pack

LOCK = threading.Lock()
BALLAST = b"x" * 4_000_000


def test_a_functions_file_and_lines_survive():
    """cloudpickle alone gives "<dynamic-code>", so that a traceback from a rank could not be followed."""

    def work():
        return lambda: None

    copy = pickle.loads(pack(work, (), {}))[0]
    assert copy.__code__.co_filename == __file__
    assert copy().__code__.co_filename == __file__
    assert copy.__code__.co_firstlineno == work.__code__.co_firstlineno


def test_the_culprit_is_named():
    def uses_global():
        with LOCK:
            pass

    def calls_it():
        return [uses_global() for _ in range(2)]

    inner = threading.Lock()

    def uses_closure():
        return inner

    uses_global.__module__ = calls_it.__module__ = "__main__"
    for function, args, kwargs, name in [
        (print, (1, threading.Lock()), {}, "argument 2 "),
        (functools.partial(print, sep=threading.Lock()), (), {}, "argument 'sep' "),
        (uses_closure, (), {}, "the closure variable 'inner' of uses_closure "),
        (calls_it, (), {}, "the global 'LOCK' of uses_global "),
        (threading.Lock().acquire, (), {}, "the callable "),
    ]:
        with pytest.raises(HfscaleError) as caught:
            pack(function, args, kwargs)
        assert name in str(caught.value), str(caught.value)
        assert "Create it inside the function" in str(caught.value)


def test_a_large_payload_names_its_largest_part(monkeypatch):
    monkeypatch.setattr(payload, "LARGE_PAYLOAD", 1_000_000)

    def work(small):
        return BALLAST, small

    work.__module__ = "__main__"
    with pytest.warns(
        UserWarning, match=r"sends 4 MB to each rank, most of it \(4 MB\) in the global 'BALLAST' of work"
    ):
        pack(work, (b"y" * 100,), {})


def test_a_small_one_does_not_warn(recwarn):
    pack(print, (1,), {})
    assert not recwarn
