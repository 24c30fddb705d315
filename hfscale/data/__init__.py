"""The text that recipes train on: sources, token ids, batches. Importing this imports no torch."""

import importlib

_HOME = {
    "KIT_DATA": "sources",
    "load_passages": "sources",
    "check_source": "sources",
    "fingerprint": "sources",
    "tokenise": "tokenising",
    "CausalCollator": "collating",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
