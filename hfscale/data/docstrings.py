"""The docstrings of Python's standard library, read from the running Python: what the pocket models are pretrained on.

Nothing is imported to get them: the sources are parsed. Other Python versions have other docstrings.
"""

import ast
import functools
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from hfscale.data.overlap import word_runs

HELD_OUT_PERCENT = 5
SHORTEST = 20  # characters; "See base class." and the like teach nothing
SKIPPED_FOLDERS = {
    *("site-packages", "dist-packages"),
    *("test", "tests", "idle_test"),  # they repeat one another
    *("lib2to3", "turtledemo"),
    "pydoc_data",  # what the models are fine-tuned on later
}


@functools.lru_cache(maxsize=1)
def split_docstrings() -> tuple[list[str], list[str]]:
    """(train, held-out) distinct docstrings. A text's hash decides where it goes, so order and count do not matter."""
    train, held_out = [], []
    for text in _distinct_docstrings():
        (held_out if _is_held_out(text) else train).append(text)
    return train, held_out


def _is_held_out(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100 < HELD_OUT_PERCENT


def _distinct_docstrings() -> list[str]:
    """Distinct also when blanks, digits and punctuation are left out (near copies would leak from train to held-out).

    Docstrings that quote pydoc are left out: the pocket models must not have seen the text that they are fine-tuned on.
    """
    of_pydoc = word_runs(_pydoc_text())
    distinct: dict[str, str] = {}
    for path in _standard_library_sources():
        for text in _docstrings_of(path):
            key = re.sub(r"[\W\d_]+", " ", text).strip().lower()
            if len(text) >= SHORTEST and key not in distinct and of_pydoc.isdisjoint(word_runs(text)):
                distinct[key] = text
    return list(distinct.values())


def _standard_library_sources() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts):
            yield path


def _docstrings_of(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old sources are not the reader's business
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and deliberately broken sources
        return
    documented = [tree]
    while documented:
        node = documented.pop()
        text = ast.get_docstring(node)
        if text and _is_encodable(text):
            yield text
        documented.extend(
            child for child in node.body if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _pydoc_text() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics.values())
