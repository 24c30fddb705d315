"""What `transformers` would print in a notebook beside our own sentence, or for what takes a blink."""

import contextlib
import logging as standard_logging
from collections.abc import Iterator


@contextlib.contextmanager
def no_bars() -> Iterator[None]:
    """No "Loading weights" bar inside; outside, what the user chose."""
    from transformers.utils import logging

    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()


@contextlib.contextmanager
def no_log_lines() -> Iterator[None]:
    """No warnings inside: the Hub's client reports each of its retries, and transformers a table of parameters."""
    loggers = [standard_logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(standard_logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
