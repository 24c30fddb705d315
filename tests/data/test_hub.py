"""Before the Hub is asked: is it within reach, and is what we want here already?"""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from hfscale.data import hub
from hfscale.errors import HfscaleError


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    monkeypatch.setattr(hub, "getproxies", dict)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def test_a_host_that_answers_is_within_reach(listening, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", listening)
    assert hub.is_reachable()


def test_a_closed_port_is_not(closed, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", closed)
    assert not hub.is_reachable()


def test_a_look_up_that_hangs_is_given_up(monkeypatch):
    over = threading.Event()

    def hang(*args, **kwargs):
        over.wait(30)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr(hub, "PATIENCE", 0.1)
    started = time.monotonic()
    assert not hub.is_reachable()
    assert time.monotonic() - started < 10
    over.set()


@pytest.mark.parametrize(
    ("proxies", "asked"), [({"https": "http://proxy:8080"}, False), ({"all": "x"}, False), ({"no": "localhost"}, True)]
)
def test_behind_a_proxy_no_connection_is_tried(monkeypatch, proxies, asked):
    tried = []

    def refuse(*args, **kwargs):
        tried.append(args)
        raise OSError

    monkeypatch.setattr(hub, "getproxies", lambda: proxies)
    monkeypatch.setattr(socket, "create_connection", refuse)
    assert hub.is_reachable() is not asked
    assert bool(tried) is asked


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        (None, ("huggingface.co", 443)),
        ("https://hub.example.org/", ("hub.example.org", 443)),
        ("http://hub.example.org", ("hub.example.org", 80)),
        ("https://10.0.0.1:8443/hf", ("10.0.0.1", 8443)),
    ],
)
def test_the_endpoint_is_the_one_that_the_libraries_ask(monkeypatch, endpoint, address):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    if endpoint:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert hub._endpoint() == address


def test_what_is_here_is_taken_from_here_when_the_hub_cannot_be_asked(monkeypatch, listening, closed):
    monkeypatch.setenv("HF_ENDPOINT", closed)
    assert hub.require_source("me/mine", True, "no folder")
    monkeypatch.setenv("HF_ENDPOINT", listening)
    assert not hub.require_source("me/mine", True, "no folder")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.require_source("me/mine", True, "no folder")


def test_what_is_nowhere_is_refused_with_the_reason(monkeypatch, closed):
    monkeypatch.setenv("HF_ENDPOINT", closed)
    with pytest.raises(HfscaleError, match=r"'me/mine' is no folder, and the Hub cannot be reached.*127.0.0.1"):
        hub.require_source("me/mine", False, "no folder")
    for name in ("TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "true")
        with pytest.raises(HfscaleError, match=f"'me/mine' is no folder, and {name} is set"):
            hub.require_source("me/mine", False, "no folder")


@pytest.mark.parametrize(
    ("variable", "below"),
    [("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")],
)
def test_the_cache_is_found_where_the_libraries_have_it(tmp_path, monkeypatch, variable, below):
    monkeypatch.setenv(variable, str(tmp_path))
    snapshot = tmp_path / below / "models--me--mine" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    (snapshot / "model.safetensors").symlink_to("../../blobs/never-loaded")
    assert hub.cached_files("me/mine", "models") == {"config.json"}
    assert hub.cached_files("me/mine", "datasets") == hub.cached_files("you/yours", "models") == set()


def test_the_libraries_agree_where_that_is(tmp_path):
    """Their constants are read at import: in a process of its own."""
    code = (
        "from hfscale.data import hub; from huggingface_hub import constants\n"
        "assert str(hub.hf_home()) == constants.HF_HOME, (hub.hf_home(), constants.HF_HOME)"
    )
    for variables in ({}, {"XDG_CACHE_HOME": str(tmp_path)}, {"HF_HOME": str(tmp_path / "home")}):
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | variables, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
