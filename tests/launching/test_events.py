"""Events: one line each, readable while they are written."""

import time

from hfscale.training.events import EventWriter, last_event, read_events


def test_events_round_trip_and_merge_by_time(tmp_path):
    started = time.time()
    for rank in (1, 0):
        writer = EventWriter(tmp_path / f"rank{rank}.jsonl", rank, started)
        writer.write("launch", pid=1)
        writer.write("step", step=3, loss=0.5)
    events = read_events(tmp_path)
    assert [event["rank"] for event in events] == [1, 1, 0, 0]
    assert events[1].items() >= {"rank": 1, "kind": "step", "step": 3, "loss": 0.5}.items()
    assert 0 <= events[0]["t"] < 60
    assert "step" not in events[0]
    assert [event["kind"] for event in read_events(tmp_path, rank=0)] == ["launch", "step"]


def test_what_cannot_be_read_is_passed_over(tmp_path):
    (tmp_path / "rank0.jsonl").write_bytes(
        b'{"t": 1, "rank": 0, "kind": "step", "loss": NaN}\n'
        b'{"t": 2, "rank": 0, "kind": "of a later version", "x": 1}\n'
        b'[1]\n{"no": "kind"}\n\xff\xfe\n'
        b'{"t": 3, "rank": 0, "ki'
    )
    events = read_events(tmp_path, rank=0)
    assert [event["t"] for event in events] == [1, 2]
    assert last_event(tmp_path, "step")["t"] == 1
    assert last_event(tmp_path, "eval") is None
    assert read_events(tmp_path, rank=7) == read_events(tmp_path / "nowhere") == []
