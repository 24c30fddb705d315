"""The notebooks and the package say the same: folded solutions, stubs, addresses; and notebooks stay short."""

import re
import tomllib
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
SOLUTIONS = ROOT / "hfscale" / "exercises" / "solutions"
EXERCISES = {"00_start_here": "start_here", "06_ddp": "ddp"}
MOST_WORDS, MOST_LINES = 2_000, 25


@pytest.fixture(params=EXERCISES)
def notebook(request):
    nb = nbformat.read(ROOT / "notebooks" / f"{request.param}.ipynb", as_version=4)
    nb.metadata["name"] = request.param
    return nb


def _markdown(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


def _code(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_folded_solutions_are_those_of_the_package(notebook):
    package = (SOLUTIONS / f"{EXERCISES[notebook.metadata['name']]}.py").read_text()
    folded = [
        block
        for text in _markdown(notebook)
        for block in re.findall(r"<summary>Solution</summary>.*?```python\n(.*?)\n```", text, re.DOTALL)
    ]
    exercises = [text for text in _markdown(notebook) if re.match(r"(## Exercises\n.*)?### \d", text, re.DOTALL)]
    assert len(folded) == len(exercises) >= 2
    assert all(block in package for block in folded)


def test_every_exercise_has_a_hint_a_stub_and_a_check(notebook):
    folded = sum("<summary>Solution</summary>" in text for text in _markdown(notebook))
    assert sum("<summary>Hint</summary>" in text for text in _markdown(notebook)) == folded
    assert sum("# replace " in source for source in _code(notebook)) == folded
    assert sum("exercise.check_" in source for source in _code(notebook)) == folded


def test_the_stored_answers_are_not_attempted(notebook):
    checks = [cell for cell in notebook.cells if cell.cell_type == "code" and "exercise.check_" in cell.source]
    said = [output.data["text/plain"] for cell in checks for output in cell.outputs if "data" in output]
    assert len(said) == len(checks) and all(text.startswith("not attempted yet: ") for text in said)


def test_addresses_follow_from_the_project(notebook):
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    path = repository.removeprefix("https://github.com/")
    first = notebook.cells[0].source
    colab = f"https://colab.research.google.com/github/{path}/blob/main/notebooks/{notebook.metadata['name']}.ipynb"
    assert f"]({colab})" in first
    assert f"pip install git+{repository}" in first


def test_it_is_short(notebook):
    assert sum(len(text.split()) for text in _markdown(notebook)) <= MOST_WORDS
    assert max(len(source.splitlines()) for source in _code(notebook)) <= MOST_LINES


def test_every_picture_says_what_it_shows(notebook):
    pictures = [o for c in notebook.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert pictures
    assert all(o.metadata["image/png"]["alt"] in o.data["text/plain"] for o in pictures)
