"""pydoc and docstrings: other text on other Pythons, so nothing here depends on what they say."""

import statistics
import subprocess
import sys

import pytest

from hfscale.data import docstrings, pydoc_topics
from hfscale.data.overlap import RUN, word_runs
from hfscale.data.sources import fingerprint, load_passages


@pytest.fixture(scope="module")
def pydoc():
    return pydoc_topics.split_pydoc()


@pytest.fixture(scope="module")
def docstring_splits():
    return docstrings.split_docstrings()


def test_pydoc_holds_out_about_15_percent_of_whole_topics(pydoc):
    from pydoc_data.topics import topics

    train, test = pydoc
    share = sum(map(len, test)) / sum(map(len, train + test))
    assert 0.10 < share < 0.20
    held_out = pydoc_topics._held_out_topics({name: pydoc_topics.split_blocks(text) for name, text in topics.items()})
    text_of_held_out = "\n".join(topics[name] for name in held_out)
    assert all(passage.strip().splitlines()[0] in text_of_held_out for passage in test)


def test_pydoc_lengths_differ_much(pydoc):
    lengths = [len(passage) for split in pydoc for passage in split]
    assert max(lengths) / statistics.median(lengths) > 5
    assert min(lengths) >= pydoc_topics.SHORTEST


def test_pydoc_test_is_not_quoted_in_train(pydoc):
    train, test = pydoc
    assert not set(train) & set(test)
    assert len(set(train)) == len(train)
    quoted = set().union(*map(word_runs, test))
    assert not any(quoted & word_runs(passage) for passage in train)


def test_docstrings_are_held_out_and_distinct(docstring_splits):
    train, held_out = docstring_splits
    assert len(train) > 4000
    assert 0.03 < len(held_out) / len(train) < 0.07
    assert not set(train) & set(held_out)
    assert len(set(train)) == len(train)


def test_docstrings_quote_no_pydoc(docstring_splits):
    from pydoc_data.topics import topics

    of_pydoc = set().union(*map(word_runs, topics.values()))
    assert not any(of_pydoc & word_runs(text) for split in docstring_splits for text in split)


def test_splits_are_the_same_in_another_process():
    """Sets and hash() would differ: each process has a hash seed of its own."""
    code = "from hfscale.data import fingerprint; print(fingerprint('pydoc'), fingerprint('docstrings'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [fingerprint("pydoc"), fingerprint("docstrings")], done.stderr


def test_both_load_by_name():
    for name in ("pydoc", "docstrings"):
        loaded = load_passages(name)
        assert loaded["train"].column_names == loaded["test"].column_names == ["text"]
        assert len(loaded["train"]) > len(loaded["test"]) > 0


def test_short_blocks_join_the_next_one():
    long, short = "word " * 20, "Heading"
    long = long.strip()
    assert pydoc_topics.split_blocks(f"{short}\n\n{long}\n\n\n{long}\n  \n{short}\n") == [
        f"{short}\n\n{long}",
        f"{long}\n\n{short}",
    ]
    assert pydoc_topics.split_blocks(short) == [short]
    assert pydoc_topics.split_blocks("\n") == []


def test_a_quotation_is_a_run_of_words():
    words = [f"w{i}" for i in range(RUN)]
    assert word_runs(" ".join(words[:-1])) == set()
    assert word_runs("before " + "\n".join(words)) & word_runs(" ".join(words) + " after") == {tuple(words)}
