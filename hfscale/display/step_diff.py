"""How the training step of one strategy differs from another's: made from the one source, `training/by_hand.py`."""

from __future__ import annotations

import difflib
import html
import inspect
import re

from hfscale.errors import HfscaleError

STRATEGIES = ("single", "ddp", "fsdp")  # those that by_hand.train knows
_BRANCH = re.compile(r'^(?P<indent> *)if strategy == "(?P<name>\w+)":\s*(#.*)?$')


def step_diff(before: str, after: str) -> StepDiff:
    """What has to change in the training step for `after` in place of `before`, such as "single" and "ddp"."""
    old, new = step_source(before).splitlines(), step_source(after).splitlines()
    return StepDiff(before, after, list(difflib.unified_diff(old, new, before, after, lineterm="", n=2)))


def step_source(strategy: str) -> str:
    """`by_hand.train` as it would read if this were the only strategy.

    Lines under `if strategy == "…":` are kept, one level further left, or dropped. All others, comments included, stay.
    """
    if strategy not in STRATEGIES:
        raise HfscaleError(f"by_hand.py has no step for {strategy!r}: it has {', '.join(STRATEGIES)}.")
    from hfscale.training import by_hand

    return specialised(inspect.getsource(by_hand.train), strategy)


def specialised(source: str, strategy: str) -> str:
    """`source` with every `if strategy == "…":` decided. An `else` of such a line is not understood, and refused."""
    kept, branch = [], None
    for line in source.splitlines():
        if branch and (not line.strip() or _depth(line) > len(branch["indent"])):
            if branch["name"] == strategy:
                kept.append(" " * max(_depth(line) - 4, 0) + line.strip())
            continue
        if branch and re.match(r" *(else|elif)\b", line) and _depth(line) == len(branch["indent"]):
            raise HfscaleError(f"A branch on the strategy must stand alone, without: {line.strip()}")
        match = _BRANCH.match(line)
        branch = match.groupdict() if match else None
        if not match:
            kept.append(line)
    return "\n".join(kept) + "\n"


class StepDiff:
    """A unified diff. `lines` holds all of it; `added` and `removed` only the changed lines, without their sign."""

    def __init__(self, before: str, after: str, lines: list[str]):
        self.before, self.after, self.lines = before, after, lines
        changes = lines[2:]  # behind the two lines that name the sides
        self.added = [line[1:] for line in changes if line.startswith("+")]
        self.removed = [line[1:] for line in changes if line.startswith("-")]

    def __str__(self) -> str:
        return "\n".join(self.lines) or f"The steps of {self.before} and {self.after} are the same."

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The signs stay in the text: what was added is not told by the colour alone."""
        colours = {"+": "#1a7f37", "-": "#b35900", "@": "#6a737d"}
        rows = "".join(
            f'<span style="color:{colours.get(line[:1], "inherit")}">{html.escape(line)}</span>\n'
            for line in self.lines
        )
        return f"<pre>{rows or html.escape(str(self))}</pre>"


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
