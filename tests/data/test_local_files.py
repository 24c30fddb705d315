"""What is refused of a file from a look at its first megabyte; and that nothing is refused that could be read."""

import json

import pytest

from hfscale.data import local_files
from hfscale.data.sources import check_source, load_passages
from hfscale.errors import HfscaleError

ROWS = [{"id": i, "text": f"Passage {i} of some words."} for i in range(6)]
TEXTS = [row["text"] for row in ROWS]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "one.txt",
            "A single passage\nof two lines.\n",
            "one.txt holds 1 distinct passage of text.*blank lines separate",
        ),
        ("twice.md", "the same\n\nthe same\n", "twice.md holds 1 distinct passage"),
        ("cut.json", json.dumps(ROWS)[:-20], "cut.json does not end as JSON does.*cut off"),
        ("cut.jsonl", "\n".join(map(json.dumps, ROWS))[:-8], "cut.jsonl does not end as JSON does.*cut off"),
        ("hole.jsonl", '{"text": "a"}\n{"text": \n{"text": "c"}\n', "hole.jsonl cannot be read as JSON: .* in line 4"),
        ("numbers.json", "[1, 2, 3]", "Row 1 of .*numbers.json is a number: expected objects"),
        ("lists.json", '[["a", "b"], ["c"]]', "Row 1 of .*lists.json is a list"),
        ("mixed.json", json.dumps([*ROWS, None]), "Row 7 of .*mixed.json is null"),
        ("empty.json", "[]", "empty.json is an empty list"),
        ("plain.jsonl", "just text\nmore text\n", "plain.jsonl is not a table in JSON"),
        ("header.csv", "id,text\n\n", "header.csv has a single line, the header of a table"),
    ],
)
def test_small_files_that_hold_nothing_to_train_on(tmp_path, name, content, sentence):
    path = tmp_path / name
    path.write_text(content)
    said = []
    for refuse in (check_source, load_passages):
        with pytest.raises(HfscaleError, match=sentence) as caught:
            refuse(path)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("texts.json", json.dumps(TEXTS)),
        ("pretty.json", json.dumps(ROWS, indent=2)),
        ("later.json", "\n  " + json.dumps(ROWS) + "\n\n"),
        ("mark.json", "\ufeff" + json.dumps(ROWS)),
        ("lines.json", "\n".join(map(json.dumps, ROWS))),
        ("gaps.jsonl", "\n\n".join(map(json.dumps, ROWS))),
        ("pretty.jsonl", "\n".join(json.dumps(row, indent=1) for row in ROWS)),
        ("joined.jsonl", "".join(map(json.dumps, ROWS))),
        ("nan.jsonl", "\n".join(map(json.dumps, [row | {"id": float("nan")} for row in ROWS]))),
        ("texts.csv", "text\n" + "\n".join(TEXTS)),
    ],
)
def test_whatever_can_be_read_is_let_pass(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    loaded = load_passages(path)
    assert [*loaded["train"]["text"], *loaded["test"]["text"]] == TEXTS


def test_no_more_than_the_beginning_of_a_large_file_is_read(tmp_path, monkeypatch):
    """Cut within a character, within a passage or a row: none of it is a fault, and what follows is not looked at."""
    monkeypatch.setattr(local_files, "LOOKED_AT", 4)
    contents = {
        "large.txt": "ein™ passage that is longer than what is looked at".encode(),
        "large.jsonl": b'{"text": "a"}\n{"text": broken\n{"text": "b"}\n',
        "large.json": b'[{"text": broken}]',
        "large.csv": b"text\nrow\n",
        "late.txt": b"fine\n\nfine\n\n" + "né".encode("latin-1"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        check_source(tmp_path / name)
    (tmp_path / "cut.json").write_bytes(b'[{"text": "a"}, {"te')
    with pytest.raises(HfscaleError, match="does not end as JSON does"):
        check_source(tmp_path / "cut.json")


def test_other_than_utf_8_late_in_a_large_file_is_a_sentence_too(tmp_path, monkeypatch):
    monkeypatch.setattr(local_files, "LOOKED_AT", 4)
    (tmp_path / "late.txt").write_bytes(b"fine\n\nfine\n\n" + "né".encode("latin-1"))
    with pytest.raises(HfscaleError, match=r"late.txt is not UTF-8 text \(at byte 13\)"):
        load_passages(tmp_path / "late.txt")


def test_a_parquet_file_without_its_end(tmp_path):
    import pandas

    path = tmp_path / "rows.parquet"
    pandas.DataFrame(ROWS).to_parquet(path)
    check_source(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(HfscaleError, match=r"rows.parquet is a parquet file without its end"):
        check_source(path)
