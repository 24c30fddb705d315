"""`pydoc`: the language reference that ships with CPython, as passages of very different lengths: to fine-tune on.

Read from the running Python. Other Python versions hold other text, so lengths and losses differ between them.
"""

import functools
import hashlib
import re
from collections.abc import Iterable

from hfscale.data.overlap import word_runs

HELD_OUT_SHARE = 0.15  # of the characters
SHORTEST = 60  # characters; a shorter block (mostly a heading) joins the next one


@functools.lru_cache(maxsize=1)
def split_pydoc() -> tuple[list[str], list[str]]:
    """(train, test) passages. Test holds whole topics, so it is new text and not the next sentence of a trained one.

    Topics quote one another ("compound" contains "if", "while", ...): a passage that also stands in a test topic
    is left out of train, wholly or in a sentence, and each passage is used once.
    """
    from pydoc_data.topics import topics

    passages = {name: split_blocks(text) for name, text in topics.items()}
    held_out = _held_out_topics(passages)
    test = _distinct(p for name in sorted(held_out) for p in passages[name])
    quoted = set().union(*map(word_runs, test.values()))
    train = _distinct(p for name in sorted(passages) if name not in held_out for p in passages[name])
    return [p for key, p in train.items() if key not in test and quoted.isdisjoint(word_runs(p))], list(test.values())


def split_blocks(text: str) -> list[str]:
    """Blank-line-separated blocks; those shorter than SHORTEST join the next one, or the previous one at the end."""
    passages: list[str] = []
    pending = ""
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        pending = f"{pending}\n\n{block.rstrip()}" if pending else block.rstrip()
        if len(pending.strip()) >= SHORTEST:
            passages.append(pending)
            pending = ""
    if pending.strip():
        if passages:
            passages[-1] += "\n\n" + pending
        else:
            passages.append(pending)
    return passages


def _held_out_topics(passages: dict[str, list[str]]) -> set[str]:
    """Topics in the order of their names' hashes until the share is reached, passing over those that are too big."""
    distinct = _distinct(p for blocks in passages.values() for p in blocks)
    wanted = HELD_OUT_SHARE * sum(map(len, distinct.values()))
    chosen: set[str] = set()
    taken = 0
    for name in sorted(passages, key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
        size = sum(map(len, passages[name]))
        if taken + size <= 1.05 * wanted:
            chosen.add(name)
            taken += size
    return chosen


def _distinct(passages: Iterable[str]) -> dict[str, str]:
    """key → passage. Headings' underlines and indentation differ between topics that quote the same text."""
    distinct: dict[str, str] = {}
    for passage in passages:
        distinct.setdefault(re.sub(r"\W+", " ", passage).strip(), passage)
    return distinct
