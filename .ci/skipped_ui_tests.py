"""Print the browser tests that a pytest run skipped, and fail if there are any.

    python .ci/skipped_ui_tests.py REPORT COLLECTED

REPORT: pytest's output with `-rs --no-fold-skipped`. COLLECTED: that of `pytest -m ui --collect-only -q`.
"""

import sys
from pathlib import Path


def skipped_ui_tests(report: str, collected: str) -> list[str]:
    """Node ids of tests that are marked `ui` and that the report calls skipped."""
    ui_tests = {line.strip() for line in collected.splitlines() if "::" in line}
    skipped = [line.removeprefix("SKIPPED ").split(" - ")[0] for line in report.splitlines() if _is_skip(line)]
    return [test for test in skipped if test.strip() in ui_tests]


def _is_skip(line: str) -> bool:
    return line.startswith("SKIPPED ")


if __name__ == "__main__":
    missed = skipped_ui_tests(*(Path(name).read_text(encoding="utf-8") for name in sys.argv[1:3]))
    for test in missed:
        print(f"skipped, and must not be: {test}")
    sys.exit(bool(missed))
