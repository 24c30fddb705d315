"""The notebooks as files: what nbval does not look at. It never compares a cell that was not run, for instance."""

from __future__ import annotations

import copy
import getpass
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SANITIZER = FOLDER / "sanitize.cfg"
MOST_BYTES, MOST_WORDS = 300_000, 2_200
FAILS_ON_PURPOSE = {"raises-exception", "nbval-raises-exception"}
NOT_COMPARED = {"nbval-ignore-output", "nbval-skip", "skip-execution", *FAILS_ON_PURPOSE}
ABSOLUTE_PATH = re.compile(r"""(?:^|[\s"'`(=\[,>])((?:/[\w.@+-]+){2,}|[A-Z]:\\\w)""", re.MULTILINE)
PROCESS_ID = re.compile(r"\bpids?\b\D{0,4}\d+", re.IGNORECASE)
COMMON_NAMES = {"root", "user", "jovyan", "runner", "ubuntu", "localhost"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_in_order(path):
    assert problems(path) == []


def problems(path: Path) -> list[str]:
    """What is wrong with the notebook at `path`, a sentence each."""
    found = []
    if not re.fullmatch(r"\d\d_[a-z0-9_]+\.ipynb", path.name):
        found.append(f"{path.name} is not named NN_title.ipynb")
    if path.stat().st_size >= MOST_BYTES:
        found.append(f"{path.stat().st_size:,} bytes, and at most {MOST_BYTES:,} are allowed")
    notebook = nbformat.read(path, as_version=4)
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        return [*found, f"not a valid notebook: {str(error).splitlines()[0]}"]
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("the kernelspec is not python3")
    return [*found, *_text_problems(notebook, path.parent), *_run_problems(notebook), *_output_problems(notebook)]


def _text_problems(notebook, folder: Path) -> list[str]:
    found = []
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    prose = "\n".join(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL) for text in texts)
    titles = re.findall(r"^# .+", prose, re.MULTILINE)
    if not notebook.cells or notebook.cells[0].cell_type != "markdown":
        found.append("the first cell is not Markdown")
    if len(titles) != 1 or not notebook.cells[0].source.startswith("# "):
        found.append(f"{len(titles)} headings of the first level: expected one, at the top of the first cell")
    if (words := len(prose.split())) > MOST_WORDS:
        found.append(f"{words} words, and at most {MOST_WORDS} are allowed")
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        # A badge leads to a notebook by its address elsewhere: the part behind the folder's name must exist here.
        named = re.search(r"://.*/notebooks/([^/]+\.ipynb)", link)
        target = named.group(1) if named else link
        if "://" not in target and not target.startswith(("mailto:", "attachment:")) and not (folder / target).exists():
            found.append(f"the link {link} leads nowhere")
    return found


def _run_problems(notebook) -> list[str]:
    found = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    run = [cell for cell in code if "skip-execution" not in _tags(cell)]
    counts = [cell.execution_count for cell in run]
    if counts != list(range(1, len(run) + 1)):
        found.append(f"execution counts are {counts}: expected 1 to {len(run)}, from one run from top to bottom")
    for cell in code:
        if cell.source.rstrip().endswith(";"):
            found.append(f"a cell ends with ';', which does not hide its value in a test: {_last_line(cell)}")
        failed = [output.ename for output in cell.outputs if output.output_type == "error"]
        if failed and not _tags(cell) & FAILS_ON_PURPOSE:
            found.append(f"a cell ended with {failed[0]}: {_last_line(cell)}")
        if "skip-execution" in _tags(cell) and (cell.outputs or cell.execution_count):
            found.append(f"a cell that is never run has an output or a count: {_last_line(cell)}")
        if "nbval-skip" in _tags(cell) and "skip-execution" not in _tags(cell):
            found.append(f"a cell is tagged nbval-skip and not skip-execution: {_last_line(cell)}")
    return [*found, *_parameter_problems(notebook)]


def _parameter_problems(notebook) -> list[str]:
    found = []
    parameters = [cell.cell_type for cell in notebook.cells if "parameters" in _tags(cell)]
    if parameters != ["code"]:
        found.append(f"{len(parameters)} cells are tagged parameters: expected one code cell")
    if any("injected-parameters" in _tags(cell) for cell in notebook.cells):
        found.append("parameters of some run are left in the notebook")
    return found


def _output_problems(notebook) -> list[str]:
    found = []
    own = {getpass.getuser(), socket.gethostname(), Path.home().name} - COMMON_NAMES - {""}
    for text in _output_texts(notebook):
        found += [f"an output holds the path {path}" for path in ABSOLUTE_PATH.findall(text)]
        found += [f"an output holds a process id: {number}" for number in PROCESS_ID.findall(text)]
        found += [f"an output holds the name {name!r}" for name in own if re.search(rf"\b{re.escape(name)}\b", text)]
    return found


def _output_texts(notebook):
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                yield output.text
            elif output.output_type == "error":
                yield output.evalue
            for kind, content in output.get("data", {}).items():
                if kind.startswith("text/"):
                    yield content


def _tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", []))


def _last_line(cell) -> str:
    return cell.source.rstrip().splitlines()[-1]


# -- do the checks above notice anything? -------------------------------------------------------------------------


def _good():
    """A small notebook without a fault, to spoil one thing at a time."""
    cells = [
        new_markdown_cell("# Title\n\nSome words, and a [link](00_small.ipynb).\n\n```bash\n# not a heading\n```"),
        new_code_cell("ranks = 2", execution_count=1, metadata={"tags": ["parameters"]}),
        new_code_cell(
            "print('two', ranks)", execution_count=2, outputs=[new_output("stream", name="stdout", text="two 2\n")]
        ),
        new_code_cell(
            "ranks + 40",
            execution_count=3,
            outputs=[new_output("execute_result", data={"text/plain": "42"}, execution_count=3)],
        ),
        new_code_cell(""),
    ]
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def _set_output(notebook, text: str):
    notebook.cells[2].outputs[0].text = text


def _fail_cell(notebook):
    notebook.cells[3].outputs = [new_output("error", ename="ValueError", evalue="no", traceback=[])]


SPOILED = {
    "never run": (lambda n: n.cells[2].update(execution_count=None), "execution counts are [1, None, 3]"),
    "run twice": (lambda n: n.cells[3].update(execution_count=7), "execution counts are [1, 2, 7]"),
    "error": (_fail_cell, "a cell ended with ValueError"),
    "semicolon": (lambda n: n.cells[3].update(source="ranks;\n"), "a cell ends with ';'"),
    "two titles": (lambda n: n.cells.append(new_markdown_cell("# Again")), "2 headings"),
    "no title": (lambda n: n.cells.pop(0), "0 headings"),
    "code first": (lambda n: n.cells.insert(0, n.cells.pop(1)), "the first cell is not Markdown"),
    "title too late": (lambda n: n.cells.insert(0, new_markdown_cell("Words first")), "at the top of the first cell"),
    "dead link": (lambda n: n.cells[0].update(source="# A\n[b](99_no.ipynb#part)"), "99_no.ipynb leads nowhere"),
    "dead badge": (
        lambda n: n.cells[0].update(source="# A\n[b](https://example.org/main/notebooks/99_no.ipynb)"),
        "99_no.ipynb leads nowhere",
    ),
    "skipped by nbval only": (
        lambda n: n.cells[3].metadata.update(tags=["nbval-skip"]),
        "tagged nbval-skip and not skip-execution",
    ),
    "output of a cell never run": (
        lambda n: n.cells[3].metadata.update(tags=["skip-execution"]),
        "a cell that is never run has an output",
    ),
    "too long": (lambda n: n.cells.append(new_markdown_cell("word " * 2_300)), "words, and at most 2200"),
    "kernel": (lambda n: n.metadata["kernelspec"].update(name="my-env"), "the kernelspec is not python3"),
    "two parameters": (lambda n: n.cells[2].metadata.update(tags=["parameters"]), "2 cells are tagged parameters"),
    "no parameters": (lambda n: n.cells[1].metadata.update(tags=[]), "0 cells are tagged parameters"),
    "papermill": (lambda n: n.cells[2].metadata.update(tags=["injected-parameters"]), "parameters of some run"),
    "path": (lambda n: _set_output(n, "saved to /home/ada/runs\n"), "the path /home/ada/runs"),
    "pid": (lambda n: _set_output(n, "rank 0 has pid 4711\n"), "a process id"),
    "big": (lambda n: _set_output(n, "x" * 300_000), "bytes, and at most"),
    "invalid": (lambda n: n.cells[2].outputs[0].update(name=5), "not a valid notebook"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_notebook_is_noticed(name, tmp_path):
    spoil, expected = SPOILED[name]
    notebook = _good()
    spoil(notebook)
    assert any(expected in problem for problem in problems(_write(notebook, tmp_path)))


def test_a_good_notebook_has_no_problems(tmp_path):
    notebook = _good()
    assert problems(_write(notebook, tmp_path)) == []
    _set_output(notebook, "8 tokens/s, <b>1/2</b> of 3 / 4, https://example.org/a/b\n")
    _fail_cell(notebook)
    notebook.cells[3].metadata["tags"] = ["raises-exception"]
    assert problems(_write(notebook, tmp_path)) == []


def test_a_wrong_name_is_noticed(tmp_path):
    assert problems(_write(_good(), tmp_path, "Untitled1.ipynb"))[0] == "Untitled1.ipynb is not named NN_title.ipynb"


def test_the_users_name_in_an_output_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    notebook = _good()
    _set_output(notebook, "hello ada\n")
    assert problems(_write(notebook, tmp_path)) == ["an output holds the name 'ada'"]


def test_the_sanitizer_hides_little():
    text = SANITIZER.read_text(encoding="utf-8")
    patterns, replacements = (re.findall(rf"^{word}: (.+)$", text, re.MULTILINE) for word in ("regex", "replace"))
    assert 0 < len(patterns) == len(replacements) <= 5
    facts = "agrees: True, 2 ranks, 1,053,824 gradients, 4215296 bytes, 2e-07, fsdp=2,tp=2, notebooks/06_ddp.ipynb"
    assert not [pattern for pattern in patterns if re.search(pattern, facts)]
    varying = "<object at 0x7f1c2a3b4c5d> /tmp/ipykernel_12/345.py /tmp/tmpab12cd_3 20261201-031500-a1b2c3"
    for pattern, replacement in zip(patterns, replacements, strict=True):
        varying = re.sub(pattern, replacement, varying)
    assert varying == "<object at 0xADDRESS> CELL.py TEMPORARY RUN"


# -- does strict nbval notice an altered output? ------------------------------------------------------------------


def test_nbval_accepts_true_outputs_and_refuses_altered_ones(tmp_path):
    _write(_good(), tmp_path)
    altered = _good()
    assert _alter(altered.cells[2].outputs[0]) and _alter(altered.cells[3].outputs[0])
    _write(altered, tmp_path, "01_altered.ipynb")
    done = _nbval(tmp_path)
    assert done.returncode == 1 and "2 failed" in done.stdout, done.stdout + done.stderr
    assert "00_small" not in done.stdout.partition("short test summary")[2], done.stdout


@pytest.mark.skipif(not NOTEBOOKS, reason="there are no notebooks yet")
def test_nbval_refuses_an_altered_output_of_a_real_notebook(tmp_path, run_root):
    """The notebook that gets to a compared output soonest, cut off behind it."""
    notebooks = [nbformat.read(path, as_version=4) for path in NOTEBOOKS]
    candidates = [(cell, notebook) for notebook in notebooks if (cell := _first_compared(notebook)) is not None]
    assert candidates, "no notebook has an output that is compared"
    cell, notebook = min(candidates, key=lambda candidate: candidate[0])
    done = _nbval(_write(_altered(notebook, cell), tmp_path).parent)
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout + done.stderr


def _first_compared(notebook) -> int | None:
    for index, cell in enumerate(notebook.cells):
        if (
            cell.cell_type == "code"
            and not _tags(cell) & NOT_COMPARED
            and any(map(_alter, copy.deepcopy(cell.outputs)))
        ):
            return index
    return None


def _altered(notebook, cell: int):
    """A copy that ends with `cell`, whose first printed or returned output says something else."""
    notebook = copy.deepcopy(notebook)
    notebook.cells = notebook.cells[: cell + 1]
    assert any(map(_alter, notebook.cells[cell].outputs)), "no output to alter"
    return notebook


def _alter(output) -> bool:
    """Alter the output in place; returns False for one that nbval does not compare as text."""
    if output.output_type == "stream" and output.name == "stdout":
        output.text = "altered\n" + output.text
        return True
    if output.output_type == "execute_result" and "text/plain" in output.data:
        output.data["text/plain"] = "altered " + output.data["text/plain"]
        return True
    return False


def _nbval(folder: Path) -> subprocess.CompletedProcess:
    """pytest over the notebooks in `folder`, compared as pyproject.toml asks for it."""
    # With "=": a path that stands by itself is taken for a test, and pytest then looks for a configuration beside it.
    options = ["--nbval", "--nbval-current-env", f"--nbval-sanitize-with={SANITIZER}", "--nbval-cell-timeout=60"]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "-rf"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110)


def _write(notebook, folder: Path, name: str = "00_small.ipynb") -> Path:
    (folder / name).write_text(nbformat.v4.writes(notebook), encoding="utf-8")
    return folder / name
