"""Where the text comes from: the kit's own, a local file, or the Hub."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfscale.data import hub
from hfscale.data.docstrings import split_docstrings
from hfscale.data.local_files import ENDINGS, TABLE_READERS, TEXT_ENDINGS, check_file, read_passages, require_two
from hfscale.data.names import looks_like_hub_id, looks_like_path, misspelt
from hfscale.data.pydoc_topics import split_pydoc
from hfscale.data.quiet import no_log_lines, no_progress_bars
from hfscale.errors import HfscaleError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

KIT_DATA = {"pydoc": split_pydoc, "docstrings": split_docstrings}
STRING_TYPES = ("string", "large_string")
HELD_OUT_EVERY = 8  # every 8th passage is test, where the data brings no test split of its own


def load_passages(data: str | os.PathLike[str]) -> DatasetDict:
    """Splits `train` and `test`, each with the one column `text`.

    data: "pydoc" or "docstrings", a local .txt, .md, .json, .jsonl, .csv or .parquet file, or a Hub id. Passages of a
    text file are separated by blank lines. A table's column is `text`, or its only column of strings. Blank and
    repeated passages are left out of each split; where the data brings no `test` or `validation` split, every 8th is
    test, and no passage is in both. Raises HfscaleError when there is no such data or no text in it.
    """
    check_source(data)
    data = os.fspath(data)
    if data in KIT_DATA:
        train, test = KIT_DATA[data]()
        return _dataset_dict(train=_rows(train), test=_rows(test))
    if (path := Path(data).expanduser()).is_file():
        is_text = path.suffix.lower() in TEXT_ENDINGS
        return _split(_rows(read_passages(path)) if is_text else _read_table(path), str(path))
    return _from_hub(data)


def check_source(data: str | os.PathLike[str]) -> None:
    """Refuse what cannot be data, without importing torch or datasets: unknown names, missing or unreadable files.

    Of a file, no more than the first megabyte is read. A Hub id must be spelt right, and the Hub be within reach or the
    data on this machine already; whether the Hub has it is not asked.
    """
    data = os.fspath(data)
    if data in KIT_DATA:
        return
    path = Path(data).expanduser()
    if path.is_file():
        check_file(path)
    elif path.is_dir():
        raise HfscaleError(f"{path} is a folder: name one file in it ({', '.join(ENDINGS)}).")
    elif path.suffix.lower() in ENDINGS or looks_like_path(data):
        raise HfscaleError(f"There is no file {path} (looked in {Path.cwd()}).")
    elif meant := misspelt(data, KIT_DATA):
        raise HfscaleError(f"The kit has no data named {data!r}: did you mean {meant}?")
    elif not looks_like_hub_id(data):
        raise HfscaleError(
            f"{data!r} is no data: give a name of the kit ({', '.join(KIT_DATA)}), a file ({', '.join(ENDINGS)}), "
            "or a Hub id such as organisation/name."
        )
    else:
        _is_only_here(data)


def fingerprint(data: str) -> str:
    """The first 12 hex digits of the SHA-256 of all passages: equal on two machines only if they hold the same text."""
    splits = KIT_DATA[data]() if data in KIT_DATA else [split["text"] for split in load_passages(data).values()]
    digest = hashlib.sha256()
    for passages in splits:
        for passage in passages:
            digest.update(passage.encode() + b"\0")
        digest.update(b"\1")
    return digest.hexdigest()[:12]


def _is_only_here(data: str) -> bool:
    """Whether a Hub id can be had from the caches of this machine alone. Raises HfscaleError if from nowhere."""
    prepared = Path(os.environ.get("HF_DATASETS_CACHE") or hub.hf_home() / "datasets").expanduser()
    is_here = (prepared / data.replace("/", "___").lower()).is_dir() or bool(hub.cached_files(data, "datasets"))
    return hub.require_source(data, is_here, f"neither data of the kit ({', '.join(KIT_DATA)}) nor a local file")


def _read_table(path: Path) -> Dataset:
    import datasets

    # In a temporary folder and in memory: datasets would leave a copy of every version of the file in the user's home.
    with tempfile.TemporaryDirectory(prefix="hfscale-") as cache, no_progress_bars(), no_log_lines():
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
        with _asking_only_the_cache() if _is_only_here(data) else contextlib.nullcontext():
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


@contextlib.contextmanager
def _asking_only_the_cache() -> Iterator[None]:
    """As HF_HUB_OFFLINE does, which has no effect once datasets is imported. It spares half a minute of retries."""
    import datasets

    was_offline = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        with no_log_lines():
            yield
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def _text_column(table: Dataset, source: str) -> Dataset:
    """The table reduced to the column `text`; refuses to guess between several columns of strings."""
    strings = [name for name, feature in table.features.items() if getattr(feature, "dtype", "") in STRING_TYPES]
    if "text" in table.features and "text" not in strings:
        raise HfscaleError(
            f"The column `text` of {source} holds {_kind(table.features['text'])}: each row needs one string there."
        )
    column = "text" if "text" in strings else strings[0] if len(strings) == 1 else None
    if column is None:
        raise HfscaleError(
            f"{source} has no column `text`, and not exactly one other column of strings. "
            f"Its columns are {', '.join(table.column_names)}: rename the one that holds the text to `text`."
        )
    table = table.select_columns([column])
    return table if column == "text" else table.rename_column(column, "text")


def _kind(feature: Any) -> str:
    """A column's type for a sentence. Json is what `datasets` makes of a column of strings, numbers and others."""
    import datasets

    if isinstance(feature, datasets.Value):
        return "nothing but null" if feature.dtype == "null" else f"values of type {feature.dtype}"
    return {"List": "lists", "Json": "values of several types", "dict": "objects"}.get(
        type(feature).__name__, f"values of type {type(feature).__name__}"
    )


def _split(rows: Dataset, source: str) -> DatasetDict:
    """Every 8th passage is test, or the last one if there are fewer."""
    kept = _distinct_rows(rows)
    require_two(len(kept), source)
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
