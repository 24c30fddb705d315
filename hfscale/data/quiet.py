"""What `datasets` would print in a notebook: bars for what takes a blink, and errors that it also raises."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """No bars inside; outside, what the user chose."""
    import datasets

    were_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def no_log_lines() -> Iterator[None]:
    """No warnings and errors inside, for a caller that turns what is raised into a sentence of its own."""
    import datasets

    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
