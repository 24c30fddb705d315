"""The doctor reports real facts, and says what to do where something is wrong."""

import hfscale as hs
from hfscale import hardware


def lines(doctor):
    return {line.name: line for line in doctor.lines}


def test_on_this_machine_all_is_well(run_root):
    seen = hs.doctor()
    by_name = lines(seen)
    assert by_name["torch"].ok
    assert by_name["pocket-llama"].ok
    assert len(by_name["pydoc text"].value.split()[-1]) == 12
    assert "<caption" in seen._repr_html_()
    assert "pydoc text" in str(seen)


def test_what_is_wrong_comes_with_advice(monkeypatch, tmp_path):
    monkeypatch.setenv("HFSCALE_CORES", "none")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hardware, "total_memory", lambda: 10**9)
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("HFSCALE_RUNS", str(in_the_way))
    seen = hs.doctor()
    by_name = lines(seen)
    assert not seen.ok
    assert "HFSCALE_CORES" in by_name["cores"].advice
    assert by_name["memory"].ok is False
    assert by_name["memory"].advice
    assert "HFSCALE_RUNS" in by_name["run folders"].advice
    assert by_name["Hugging Face Hub"].value.startswith("offline")


def test_a_version_outside_the_supported_range_is_named(monkeypatch, run_root):
    import importlib.metadata

    plain = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.57.0" if name == "transformers" else plain(name))
    line = lines(hs.doctor())["transformers"]
    assert line.ok is False
    assert "pip install 'transformers" in line.advice
