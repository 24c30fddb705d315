"""The Hub, before it is asked: can it be reached, and what of it is on this machine already?

The libraries' clients find out by themselves that there is no network, after half a minute of retries that they print.
Imports nothing big, so that a misspelt name costs no seconds either.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from hfscale.errors import HfscaleError

PATIENCE = 3.0  # seconds; a connection that takes longer will not load gigabytes
PORTS = {"https": 443, "http": 80}


def require_source(name: str, is_here: bool, described: str) -> bool:
    """Whether only what is on this machine can be used. Raises HfscaleError when it is not here and the Hub is no help.

    is_here: the cache holds it. described: what else the name is not, "neither a model of the kit, nor a folder".
    """
    if variable := offline_variable():
        if is_here:
            return True
        raise HfscaleError(
            f"{name!r} is {described}, and {variable} is set, so that the Hub is not asked: load it once while online, "
            "or use what is on this machine."
        )
    if is_reachable():
        return False
    if is_here:
        return True
    raise HfscaleError(
        f"{name!r} is {described}, and the Hub cannot be reached from here (no connection to {_endpoint()[0]}): "
        "load it once while online, or use what is on this machine."
    )


def offline_variable() -> str | None:
    """The variable that forbids asking the Hub, if one is set."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((name for name in names if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")), None)


def is_reachable() -> bool:
    """Whether a connection to the Hub's host opens within PATIENCE. Behind a proxy that says nothing, and it is True.

    In a thread, since looking up a name can hang for much longer than any time limit of a socket.
    """
    if {"http", "https", "all"} & getproxies().keys():
        return True
    opened = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError, UnicodeError):  # the latter from a host name that cannot be one
            socket.create_connection(_endpoint(), timeout=PATIENCE).close()
            opened.set()

    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(PATIENCE)
    return opened.is_set()


def cached_files(name: str, kind: str) -> set[str]:
    """Names of the files of a Hub id that are on this machine. kind: "models" or "datasets"."""
    home = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or hf_home() / "hub")
    folder = home.expanduser() / f"{kind}--{name.replace('/', '--')}" / "snapshots"
    return {path.name for path in folder.glob("*/*") if path.exists()}  # links to blobs: some may lead nowhere


def hf_home() -> Path:
    """Where the Hugging Face libraries keep what they load; their rule, without importing them."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or Path(caches) / "huggingface").expanduser()


def _endpoint() -> tuple[str, int]:
    url = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    return url.hostname or "huggingface.co", url.port or PORTS.get(url.scheme, 443)
