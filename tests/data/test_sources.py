"""Where text comes from, and what is refused before anything starts."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from hfscale.data.sources import check_source, fingerprint, load_passages
from hfscale.errors import HfscaleError

GARDEN = Path(__file__).parents[1] / "fixtures" / "garden.txt"
# Not forbidden to ask, and nobody answers there.
NO_HUB = {
    "HF_HUB_OFFLINE": "0",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "http_proxy": "",
    "https_proxy": "",
    "all_proxy": "",
}
PASSAGES = [f"Passage number {i} of some words." for i in range(20)]


def test_text_file_splits_at_blank_lines_and_holds_out_every_eighth(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("\n\n".join(PASSAGES[:3]) + "\n \n\n" + "\r\n\r\n".join(PASSAGES[3:]) + "\n")
    loaded = load_passages(str(path))
    assert loaded["test"]["text"][:] == [PASSAGES[7], PASSAGES[15]]
    assert loaded["train"]["text"][:] == [p for i, p in enumerate(PASSAGES) if i not in (7, 15)]
    assert loaded["train"].column_names == ["text"]


def test_lines_within_a_passage_stay(tmp_path):
    path = tmp_path / "verse.md"
    path.write_text("first\n  second\n\nthird\n", encoding="utf-8-sig")
    loaded = load_passages(str(path))
    assert loaded["train"]["text"][:] == ["first\n  second"]
    assert loaded["test"]["text"][:] == ["third"]


def test_a_repeated_passage_is_not_trained_on_and_tested_on(tmp_path):
    path = tmp_path / "repeats.txt"
    path.write_text("\n\n".join(PASSAGES + PASSAGES))
    loaded = load_passages(str(path))
    assert not set(loaded["train"]["text"]) & set(loaded["test"]["text"])
    assert len(loaded["train"]) + len(loaded["test"]) == len(PASSAGES)


def test_garden_is_split_once_and_for_all():
    loaded = load_passages(str(GARDEN))
    assert (len(loaded["train"]), len(loaded["test"])) == (107, 15)
    assert fingerprint(str(GARDEN)) == "49f6b042e9ef"


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv", "parquet"])
def test_tables_give_their_text_column(tmp_path, ending):
    rows = [{"id": i, "title": "t", "text": text} for i, text in enumerate(PASSAGES)]
    path = write_table(tmp_path / f"my table [1].{ending}", rows)
    loaded = load_passages(str(path))
    assert loaded["train"].column_names == ["text"]
    assert loaded["test"]["text"][:] == [PASSAGES[7], PASSAGES[15]]


def test_the_only_column_of_strings_is_taken(tmp_path):
    path = write_table(tmp_path / "table.jsonl", [{"id": i, "review": text} for i, text in enumerate(PASSAGES)])
    assert load_passages(str(path))["train"]["text"][0] == PASSAGES[0]


def test_rows_without_text_are_left_out(tmp_path):
    path = write_table(tmp_path / "table.jsonl", [{"text": t} for t in ("one", None, " ", "", "two", "three")])
    loaded = load_passages(str(path))
    assert loaded["train"]["text"][:] == ["one", "two"]
    assert loaded["test"]["text"][:] == ["three"]


def test_nothing_is_written_to_the_users_home(tmp_path):
    path = write_table(tmp_path / "table.csv", [{"text": text} for text in PASSAGES])
    home = tmp_path / "home"
    code = f"from hfscale.data import load_passages; assert len(load_passages({str(path)!r})['train']) == 18"
    run_python(code, HF_HOME=str(home), HF_HUB_OFFLINE="1")
    assert [file for file in home.rglob("*") if file.is_file()] == []


def test_checking_imports_neither_torch_nor_datasets():
    code = (
        "import sys, hfscale.data as data\n"
        f"data.check_source('pydoc'); data.check_source({str(GARDEN)!r})\n"
        "assert not {'torch', 'datasets', 'transformers'} & set(sys.modules)"
    )
    run_python(code)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("pydocs", "did you mean pydoc"),
        ("Docstring", "did you mean docstrings"),
        ("missing.txt", "no file missing.txt"),
        ("./missing", "no file missing"),
        ("a/b/c", "no file a/b/c"),
        ("two words", "is no data"),
        ("", "is a folder|is no data"),
    ],
)
def test_names_that_cannot_be_data(data, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for refuse in (check_source, load_passages):
        with pytest.raises(HfscaleError, match=sentence):
            refuse(data)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.txt", b"", "is empty"),
        ("blank.txt", b" \n\n \t\n", "is empty"),
        ("empty.parquet", b"", "is empty"),
        ("latin.txt", "na\xefve caf\xe9".encode("latin-1"), "not UTF-8"),
        ("latin.csv", "text\nna\xefve\n".encode("latin-1"), "not UTF-8"),
        ("letter.docx", b"text", "ending '.docx'"),
        ("noending", b"text", "ending ''"),
        ("fake.parquet", b"text,more", "not a parquet file"),
    ],
)
def test_files_that_cannot_be_data(tmp_path, name, content, sentence):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(HfscaleError, match=sentence):
        check_source(str(path))


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(HfscaleError, match="is a folder: name one file"):
        check_source(str(tmp_path))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"question": "q", "answer": "a"}] * 3, "no column `text`.*question, answer"),
        ([{"number": 1}, {"number": 2}], "no column `text`.*number"),
        ([{"text": "only one"}], "holds 1 distinct passage of text"),
        ([{"text": ""}, {"text": " "}], "holds 0 distinct passages of text"),
    ],
)
def test_tables_without_usable_text(tmp_path, rows, sentence):
    path = write_table(tmp_path / "table.jsonl", rows)
    with pytest.raises(HfscaleError, match=sentence):
        load_passages(str(path))


@pytest.mark.parametrize(
    ("texts", "held"),
    [
        ([1, 2, 3], "values of type int64"),
        (["one", 2, "three", 4.5], "values of several types"),
        ([["a", "b"], ["c"]], "lists"),
        ([{"a": "b"}, {"a": "c"}], "objects"),
        ([None, None], "nothing but null"),
    ],
)
def test_a_text_column_of_another_type_is_named(tmp_path, texts, held):
    """Another column of strings is not taken in its place."""
    path = write_table(tmp_path / "table.jsonl", [{"text": text, "title": "t"} for text in texts])
    with pytest.raises(HfscaleError, match=rf"column `text` of .*table.jsonl holds {held}: each row needs one string"):
        load_passages(path)


@pytest.mark.parametrize("name", ["tab.jsonl", "uneven.csv"])
def test_a_broken_table_is_named_and_nothing_else_is_printed(tmp_path, name):
    contents = {"tab.jsonl": '{"text": "a\tb"}\n{"text": "c"}\n', "uneven.csv": "id,text\n1,a\n2,b,c,d\n"}
    path = tmp_path / name
    path.write_text(contents[name])
    code = (
        "import datasets; from hfscale.data import load_passages; from hfscale.errors import HfscaleError\n"
        "before = datasets.logging.get_verbosity()\n"
        f"try: load_passages({str(path)!r})\n"
        "except HfscaleError as error: print(error)\n"
        "assert datasets.logging.get_verbosity() == before"
    )
    assert f"{name} cannot be read as a table: " in run_python(code, stderr="")


def test_an_unknown_hub_id_is_refused_at_once_where_there_is_no_hub():
    code = (
        "from hfscale.data import check_source\n"
        "from hfscale import errors\n"
        "try: check_source('nobody/nothing')\n"
        "except errors.HfscaleError as error: print(error)"
    )
    assert "HF_HUB_OFFLINE is set" in run_python(code, HF_HUB_OFFLINE="1")
    said = run_python(code, **NO_HUB)
    assert said.startswith(
        "'nobody/nothing' is neither data of the kit (pydoc, docstrings) nor a local file, and the Hub"
    )
    assert "cannot be reached" in said


def test_whether_the_hub_has_it_is_not_asked(hub_within_reach):
    check_source("nobody/nothing")


def test_data_in_the_cache_needs_no_network(tmp_path):
    """Asked in vain, the Hub's client would try again for half a minute, and print each time."""
    path = write_table(tmp_path / "words.jsonl", [{"text": text} for text in PASSAGES])
    built = datasets.load_dataset("json", data_files=str(path), cache_dir=str(tmp_path / "built"))
    arrow = Path(built["train"].cache_files[0]["filename"])
    prepared = tmp_path / "home" / "datasets" / "me___words" / "default" / "0.0.0" / ("0" * 40)
    shutil.copytree(arrow.parent, prepared)
    (prepared / arrow.name).rename(prepared / "words-train.arrow")
    code = (
        "import datasets; from hfscale.data import load_passages\n"
        "print(len(load_passages('me/words')['train']), datasets.config.HF_HUB_OFFLINE)"
    )
    assert run_python(code, stderr="", HF_HOME=str(tmp_path / "home"), **NO_HUB) == "18 False\n"


def test_a_hub_that_fails_is_one_sentence(monkeypatch, hub_within_reach):
    def fail(name):
        raise ConnectionError("Couldn't reach the Hub") from OSError("Name or service not known\nmore")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(HfscaleError, match=r"'nobody/nothing' is neither .* failed: Name or service not known\.$"):
        load_passages("nobody/nothing")


@pytest.mark.parametrize("names", [("train", "test"), ("train", "validation"), ("train",), ("everything",)])
def test_splits_of_a_hub_dataset(monkeypatch, hub_within_reach, names):
    text = datasets.Dataset.from_dict({"text": PASSAGES, "id": list(range(20))})
    splits = datasets.DatasetDict({name: text.select(range(16)) for name in names})
    if len(names) == 2:
        splits[names[1]] = text.select(range(16, 20))
    monkeypatch.setattr(datasets, "load_dataset", lambda name: splits)
    loaded = load_passages("somebody/something")
    expected = PASSAGES[16:] if len(names) == 2 else [PASSAGES[7], PASSAGES[15]]
    assert loaded["test"]["text"][:] == expected
    assert loaded["train"].column_names == ["text"]


def test_a_hub_dataset_without_a_train_split(monkeypatch, hub_within_reach):
    text = datasets.Dataset.from_dict({"text": PASSAGES})
    monkeypatch.setattr(datasets, "load_dataset", lambda name: datasets.DatasetDict({"test": text, "dev": text}))
    with pytest.raises(HfscaleError, match="no split named train, only test, dev"):
        load_passages("somebody/something")


def test_a_hub_dataset_with_an_empty_split(monkeypatch, hub_within_reach):
    splits = {
        "train": datasets.Dataset.from_dict({"text": PASSAGES}),
        "test": datasets.Dataset.from_dict({"text": [""]}),
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda name: datasets.DatasetDict(splits))
    with pytest.raises(HfscaleError, match="no text in its test split"):
        load_passages("somebody/something")


def test_the_fingerprint_follows_the_text(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("\n\n".join(PASSAGES))
    before = fingerprint(str(path))
    assert fingerprint(str(path)) == before
    assert len(before) == 12
    path.write_text("\n\n".join(PASSAGES).replace("number 3", "number three"))
    assert fingerprint(str(path)) != before


def write_table(path: Path, rows: list[dict]) -> Path:
    import pandas

    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        pandas.DataFrame(rows).to_parquet(path)
    return path


def run_python(code: str, stderr: str | None = None, **variables: str) -> str:
    """What it prints; stderr: what it must print there, None for anything."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert stderr is None or done.stderr == stderr
    return done.stdout


@pytest.fixture
def hub_within_reach(monkeypatch):
    """A port that accepts connections in place of the Hub: there is one, and it is not asked for anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        yield
