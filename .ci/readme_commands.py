"""Print a command that the README promises, so that what is tested is what is written there.

    python .ci/readme_commands.py main     # the main job
    python .ci/readme_commands.py tests    # all tests

In the README the line `<!-- command: NAME -->` stands in front of the fenced bash block.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def readme_commands(text: str) -> dict[str, str]:
    """The marked bash blocks of a README by name. Raises ValueError for a mark without a block or used twice."""
    commands: dict[str, str] = {}
    for mark in re.finditer(r"^<!-- command: (\w+) -->\n", text, re.MULTILINE):
        block = re.compile(r"\n*```bash\n(.*?)\n```$", re.MULTILINE | re.DOTALL).match(text, mark.end())
        name = mark.group(1)
        if block is None or name in commands:
            raise ValueError(f"README: the mark 'command: {name}' needs one fenced bash block right behind it")
        commands[name] = block.group(1)
    return commands


if __name__ == "__main__":
    print(readme_commands(README.read_text(encoding="utf-8"))[sys.argv[1]])
