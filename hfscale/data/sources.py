"""Where the text comes from: the kit's own, a local file, or the Hub."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hfscale.data.docstrings import split_docstrings
from hfscale.data.names import looks_like_hub_id, looks_like_path, misspelt
from hfscale.data.pydoc_topics import split_pydoc
from hfscale.data.quiet import no_progress_bars
from hfscale.errors import HfscaleError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

KIT_DATA = {"pydoc": split_pydoc, "docstrings": split_docstrings}
TEXT_ENDINGS = (".txt", ".md")
TABLE_READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
STRING_TYPES = ("string", "large_string")
HELD_OUT_EVERY = 8  # every 8th passage is test, where the data brings no test split of its own


def load_passages(data: str) -> DatasetDict:
    """Splits `train` and `test`, each with the one column `text`.

    data: "pydoc" or "docstrings", a local .txt, .md, .json, .jsonl, .csv or .parquet file, or a Hub id. Passages of a
    text file are separated by blank lines. A table's column is `text`, or its only column of strings. Blank and
    repeated passages are left out of each split; where the data brings no `test` or `validation` split, every 8th is
    test, and no passage is in both. Raises HfscaleError when there is no such data or no text in it.
    """
    check_source(data)
    if data in KIT_DATA:
        train, test = KIT_DATA[data]()
        return _dataset_dict(train=_rows(train), test=_rows(test))
    if (path := Path(data).expanduser()).is_file():
        is_text = path.suffix.lower() in TEXT_ENDINGS
        return _split(_rows(_read_passages(path)) if is_text else _read_table(path), data)
    return _from_hub(data)


def check_source(data: str) -> None:
    """Refuse what cannot be data, without importing torch or datasets: unknown names, missing or unreadable files.

    A Hub id passes if its spelling is right; with HF_HUB_OFFLINE set, it must have been loaded on this machine before.
    """
    if data in KIT_DATA:
        return
    path = Path(data).expanduser()
    endings = (*TEXT_ENDINGS, *TABLE_READERS)
    if path.is_file():
        _check_file(path, endings)
    elif path.is_dir():
        raise HfscaleError(f"{path} is a folder: name one file in it ({', '.join(endings)}).")
    elif path.suffix.lower() in endings or looks_like_path(data):
        raise HfscaleError(f"There is no file {path} (looked in {Path.cwd()}).")
    elif meant := misspelt(data, KIT_DATA):
        raise HfscaleError(f"The kit has no data named {data!r}: did you mean {meant}?")
    elif not looks_like_hub_id(data):
        raise HfscaleError(
            f"{data!r} is no data: give a name of the kit ({', '.join(KIT_DATA)}), a file ({', '.join(endings)}), "
            "or a Hub id such as organisation/name."
        )
    elif _is_offline() and not _is_cached(data):
        raise HfscaleError(
            f"{data!r} is neither data of the kit ({', '.join(KIT_DATA)}) nor a local file, and HF_HUB_OFFLINE is set: "
            "load it once while online, or use data that is here."
        )


def fingerprint(data: str) -> str:
    """The first 12 hex digits of the SHA-256 of all passages: equal on two machines only if they hold the same text."""
    splits = KIT_DATA[data]() if data in KIT_DATA else [split["text"] for split in load_passages(data).values()]
    digest = hashlib.sha256()
    for passages in splits:
        for passage in passages:
            digest.update(passage.encode() + b"\0")
        digest.update(b"\1")
    return digest.hexdigest()[:12]


def _check_file(path: Path, endings: tuple[str, ...]) -> None:
    ending = path.suffix.lower()
    if ending not in endings:
        raise HfscaleError(f"{path} has the ending {ending!r}: data files end in {', '.join(endings)}.")
    try:
        if ending == ".parquet":
            with path.open("rb") as file:
                has_content = file.read(4)
            if has_content and has_content != b"PAR1":
                raise HfscaleError(f"{path} is not a parquet file, in spite of its ending.")
        else:
            with path.open(encoding="utf-8-sig") as lines:
                has_content = sum(not line.isspace() for line in lines)  # to the end, so that all of it is decoded
    except UnicodeDecodeError as error:
        raise HfscaleError(f"{path} is not UTF-8 text (byte {error.start} of a block): save it as UTF-8.") from None
    except OSError as error:
        raise HfscaleError(f"{path} cannot be read: {error.strerror}.") from None
    if not has_content:
        raise HfscaleError(f"{path} is empty: it holds no passage to train on.")


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _is_cached(data: str) -> bool:
    """Whether datasets or the Hub client has it on this machine; their rule for where, without importing them."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    prepared = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets") / data.replace("/", "___").lower()
    downloaded = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"datasets--{data.replace('/', '--')}"
    return prepared.is_dir() or downloaded.is_dir()


def _read_passages(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8-sig")
    return [passage.strip("\n") for passage in re.split(r"\n\s*\n", text.strip())]


def _read_table(path: Path) -> Dataset:
    import datasets

    # In a temporary folder and in memory: datasets would leave a copy of every version of the file in the user's home.
    with tempfile.TemporaryDirectory(prefix="hfscale-") as cache, no_progress_bars():
        try:
            table = datasets.load_dataset(
                TABLE_READERS[path.suffix.lower()],
                data_files=glob.escape(str(path)),  # datasets takes it for a pattern
                split="train",
                cache_dir=cache,
                keep_in_memory=True,
            )
        except Exception as error:  # what json, csv, pyarrow and pandas raise has no common base
            raise HfscaleError(f"{path} cannot be read as a table: {_root_cause(error)}.") from error
    return _text_column(table, str(path))


def _from_hub(data: str) -> DatasetDict:
    import datasets

    try:
        loaded = datasets.load_dataset(data)
    except Exception as error:  # the Hub's, the network's and the readers' errors have no common base
        raise HfscaleError(
            f"{data!r} is neither data of the kit ({', '.join(KIT_DATA)}) nor a local file, and loading it from the "
            f"Hub failed: {_root_cause(error)}."
        ) from error
    test = next((loaded[name] for name in ("test", "validation") if name in loaded), None)
    train = loaded["train"] if "train" in loaded else next(iter(loaded.values())) if len(loaded) == 1 else None
    if train is None:
        raise HfscaleError(f"{data} has no split named train, only {', '.join(loaded)}.")
    if test is None or test is train:
        return _split(_text_column(train, data), data)
    splits = {"train": _text_column(train, data), "test": _text_column(test, data)}
    kept = {name: _distinct_rows(rows) for name, rows in splits.items()}
    if empty := [name for name in splits if not kept[name]]:
        raise HfscaleError(f"{data} holds no text in its {' and '.join(empty)} split.")
    return _dataset_dict(**{name: rows.select(kept[name]) for name, rows in splits.items()})


def _text_column(table: Dataset, source: str) -> Dataset:
    """The table reduced to the column `text`; refuses to guess between several columns of strings."""
    strings = [name for name, feature in table.features.items() if getattr(feature, "dtype", "") in STRING_TYPES]
    column = "text" if "text" in strings else strings[0] if len(strings) == 1 else None
    if column is None:
        raise HfscaleError(
            f"{source} has no column `text` of strings and not exactly one other column of strings. "
            f"Its columns are {', '.join(table.column_names)}: rename the one that holds the text to `text`."
        )
    table = table.select_columns([column])
    return table if column == "text" else table.rename_column(column, "text")


def _split(rows: Dataset, source: str) -> DatasetDict:
    """Every 8th passage is test, or the last one if there are fewer."""
    kept = _distinct_rows(rows)
    if len(kept) < 2:
        raise HfscaleError(
            f"{source} holds {len(kept)} distinct passage{'' if len(kept) == 1 else 's'} of text, and at least 2 are "
            "needed: one to train on, one to test on. In a text file, blank lines separate passages."
        )
    test = kept[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY] or kept[-1:]
    in_test = set(test)
    train = [i for i in kept if i not in in_test]
    return _dataset_dict(train=rows.select(train), test=rows.select(test))


def _distinct_rows(rows: Dataset) -> list[int]:
    """Indices of the rows that hold text, each text once, so that none is trained on and tested on."""
    first: dict[str, int] = {}
    for i, text in enumerate(rows["text"]):
        if text and not text.isspace():
            first.setdefault(text, i)
    return list(first.values())


def _rows(passages: list[str]) -> Dataset:
    import datasets

    return datasets.Dataset.from_dict({"text": passages})


def _dataset_dict(**splits: Dataset) -> DatasetDict:
    import datasets

    return datasets.DatasetDict(splits)


def _root_cause(error: BaseException) -> str:
    """The first line of what went wrong first: datasets wraps it in sentences about itself."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
