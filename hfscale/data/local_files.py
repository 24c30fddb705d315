"""Files of one's own: what can be told of them from their first megabyte, and the passages of a text file.

Nothing here imports torch or datasets, and nothing reads a large file to its end before it is needed.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from pathlib import Path
from typing import Any

from hfscale.errors import HfscaleError

TEXT_ENDINGS = (".txt", ".md")
TABLE_READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
ENDINGS = (*TEXT_ENDINGS, *TABLE_READERS)
LOOKED_AT = 1 << 20  # bytes


def check_file(path: Path) -> None:
    """Refuse a file that cannot hold text to train on, as far as its first megabyte and its last bytes show."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise HfscaleError(f"{path} has the ending {ending!r}: data files end in {', '.join(ENDINGS)}.")
    try:
        head, tail = _ends(path)
    except OSError as error:
        raise HfscaleError(f"{path} cannot be read: {error.strerror}.") from None
    is_whole = len(head) < LOOKED_AT
    text = "" if ending == ".parquet" else _decoded(path, head, is_whole)
    if not head or (is_whole and ending != ".parquet" and not text.strip()):
        raise HfscaleError(f"{path} is empty: it holds no passage to train on.")
    if ending == ".parquet":
        _check_parquet(path, head, tail)
    elif ending in TEXT_ENDINGS and is_whole:
        require_two(len(set(split_passages(text))), str(path))
    elif ending == ".csv" and is_whole:
        _check_csv(path, text)
    elif TABLE_READERS.get(ending) == "json":
        _check_json(path, text.lstrip(), tail.rstrip(), is_whole)


def read_passages(path: Path) -> list[str]:
    """The passages of a text file. Raises HfscaleError if it is not UTF-8."""
    return split_passages(_decoded(path, path.read_bytes(), is_whole=True))


def split_passages(text: str) -> list[str]:
    """What blank lines separate; indentation and lines within a passage stay."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return [passage.strip("\n") for passage in re.split(r"\n\s*\n", lines.strip())]


def require_two(distinct: int, source: str) -> None:
    """Raise HfscaleError if that many distinct passages cannot be split into train and test."""
    if distinct < 2:
        raise HfscaleError(
            f"{source} holds {distinct} distinct passage{'' if distinct == 1 else 's'} of text, and at least 2 are "
            "needed: one to train on, one to test on. In a text file, blank lines separate passages."
        )


def _ends(path: Path) -> tuple[bytes, bytes]:
    with path.open("rb") as file:
        head = file.read(LOOKED_AT)
        file.seek(-min(1024, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return head, file.read()


def _decoded(path: Path, content: bytes, is_whole: bool) -> str:
    """Text of UTF-8 bytes that may end within a character unless they are all."""
    try:
        return codecs.getincrementaldecoder("utf-8-sig")().decode(content, final=is_whole)
    except UnicodeDecodeError as error:
        raise HfscaleError(f"{path} is not UTF-8 text (at byte {error.start}): save it as UTF-8.") from None


def _check_parquet(path: Path, head: bytes, tail: bytes) -> None:
    if not head.startswith(b"PAR1"):
        raise HfscaleError(f"{path} is not a parquet file, in spite of its ending.")
    if not tail.endswith(b"PAR1"):
        raise HfscaleError(f"{path} is a parquet file without its end: it was cut off when it was written or copied.")


def _check_csv(path: Path, text: str) -> None:
    if sum(1 for line in text.splitlines() if line.strip()) < 2:
        raise HfscaleError(f"{path} has a single line, the header of a table, and no rows to train on.")


def _check_json(path: Path, text: str, tail: bytes, is_whole: bool) -> None:
    """A list of objects or of texts, or objects one after another: that is what `datasets` reads."""
    if not text.startswith(("[", "{")):
        raise HfscaleError(f"{path} is not a table in JSON: expected a list of objects, or one object in each line.")
    if not tail.endswith((b"]", b"}")):
        raise HfscaleError(
            f"{path} does not end as JSON does, in ] or }}: it was cut off when it was written or copied."
        )
    if not is_whole:
        return
    try:
        values = _json_values(text)
    except json.JSONDecodeError as error:
        raise HfscaleError(
            f"{path} cannot be read as JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        ) from None
    rows = values[0] if isinstance(values[0], list) and len(values) == 1 else values
    if not rows:
        raise HfscaleError(f"{path} is an empty list: it holds no passage to train on.")
    allowed = str if rows is values[0] and isinstance(rows[0], str) else dict
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, allowed):
            raise HfscaleError(
                f"Row {number} of {path} is {_in_words(row)}: expected objects with the field `text` throughout."
            )


def _json_values(text: str) -> list[Any]:
    """One value after another, however they are spread over lines. Tabs within strings are let pass, as readers do."""
    decoder, values, at = json.JSONDecoder(strict=False), [], 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        values.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    return values


def _in_words(value: Any) -> str:
    names = {
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")
