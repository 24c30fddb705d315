"""What a `model` or `data` text may be by its spelling: a name of the kit, a local path, or a Hub id."""

import difflib
import os
import re
from collections.abc import Iterable


def looks_like_path(name: str) -> bool:
    """True for `./x`, `/x`, `~/x`, `a/b/c` and `a/`: on the Hub there is no such name, so it must exist here."""
    return name.startswith((".", "/", "~", os.sep)) or name.count("/") > 1 or name.endswith("/") or "\\" in name


def looks_like_hub_id(name: str) -> bool:
    """True for `name` and `organisation/name`."""
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """The known name that a single word probably means, or None. It spares a look-up on the Hub that must fail."""
    if "/" in name:
        return None
    return next(iter(difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)), None)
