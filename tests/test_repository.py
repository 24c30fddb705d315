"""What stands twice in the repository stays equal, what the README says exists, and `import hfscale` stays light."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import hfscale

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # of apache.org's LICENSE-2.0.txt
HEAVY = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "numpy",
    "ipywidgets",
    "IPython",
    "matplotlib",
    "rich",
    "typer",
)


def test_environment_yml_asks_for_what_pyproject_asks_for():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    pip = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    extras = PROJECT["optional-dependencies"]
    wanted = dict.fromkeys([*PROJECT["dependencies"], *extras["lab"], *extras["test"]])
    assert environment["name"] == PROJECT["name"]
    assert f"python{PROJECT['requires-python']}" in conda
    assert pip == list(wanted)


def test_the_test_extra_covers_the_other_extras():
    extras = PROJECT["optional-dependencies"]
    for name in ("lab", "vision"):
        assert set(extras[name]) <= set(extras["test"]), f"extra {name}"


def test_the_version_is_the_same_everywhere():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert hfscale.__version__ == PROJECT["version"]
    assert re.search(rf"\b{re.escape(PROJECT['version'])}\b", changelog)
    assert "## [Unreleased]" in changelog


def test_the_readme_commands_are_those_that_ci_runs():
    commands = _ci_script("readme_commands").readme_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert commands == {
        "main": 'pip install -e ".[lab]" && hfscale compare',
        "tests": 'pip install -e ".[lab,test]" && pytest',
    }
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for name, variable in (("main", "main_job"), ("tests", "all_tests")):
        assert f"{variable}=$(python .ci/readme_commands.py {name})" in ci
        assert f'bash -euo pipefail -c "${variable}"' in ci


def test_the_script_prints_a_command_as_the_shell_will_see_it():
    script = [sys.executable, str(ROOT / ".ci" / "readme_commands.py")]
    assert subprocess.run([*script, "main"], capture_output=True, text=True).stdout == (
        'pip install -e ".[lab]" && hfscale compare\n'
    )
    assert subprocess.run([*script, "no-such-command"], capture_output=True).returncode != 0


@pytest.mark.parametrize(
    "readme",
    [
        "<!-- command: main -->\n\ntext\n\n```bash\nls\n```\n",
        "<!-- command: main -->\n```python\n1\n```\n",
        "<!-- command: main -->\n```bash\nls\n```\n<!-- command: main -->\n```bash\nls\n```\n",
    ],
    ids=["text between", "not bash", "twice"],
)
def test_a_mark_without_its_command_is_an_error(readme):
    with pytest.raises(ValueError, match="command: main"):
        _ci_script("readme_commands").readme_commands(readme)


def test_ci_notices_a_browser_test_that_was_skipped():
    skipped = _ci_script("skipped_ui_tests").skipped_ui_tests
    collected = "tests/ui/test_panel.py::test_stop\ntests/ui/test_panel.py::test_start\n\n2 tests collected in 0.1s\n"
    report = "SKIPPED tests/ui/test_panel.py::test_stop - no Chromium\nSKIPPED tests/test_a.py::test_gpu - no GPU\n"
    assert skipped(report, collected) == ["tests/ui/test_panel.py::test_stop"]
    assert skipped("SKIPPED tests/test_a.py::test_gpu - no GPU\n", collected) == []


def test_pytest_reports_skips_in_the_form_that_ci_reads(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    ui: browser\n", encoding="utf-8")
    (tmp_path / "test_panel.py").write_text(
        "import pytest\n\n"
        "@pytest.fixture\ndef browser():\n    pytest.skip('no Chromium')\n\n"
        "@pytest.mark.ui\ndef test_stop(browser):\n    pass\n",
        encoding="utf-8",
    )
    report, collected = (
        _pytest(tmp_path, *options) for options in (("-rs", "--no-fold-skipped"), ("-m", "ui", "--collect-only", "-q"))
    )
    assert _ci_script("skipped_ui_tests").skipped_ui_tests(report, collected) == ["test_panel.py::test_stop"]


def test_ci_makes_its_own_environment_and_removes_it():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111, ".ci/run is not executable"
    assert ci.startswith("#!/usr/bin/env bash\n") and "set -euo pipefail" in ci
    assert "work=$(mktemp -d)" in ci and "trap 'rm -rf \"$work\"' EXIT" in ci
    assert '-m venv "$work/venv"' in ci


def test_importing_hfscale_loads_nothing_heavy():
    script = (
        "import json, sys, time\n"
        "began = time.perf_counter()\n"
        "import hfscale\n"
        "seconds = time.perf_counter() - began\n"
        f"print(json.dumps([seconds, [name for name in {HEAVY!r} if name in sys.modules]]))"
    )
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", script], text=True)) for _ in range(3)]
    print(f"import hfscale: {min(seconds for seconds, _ in runs):.3f} s, best of 3")
    assert runs[0][1] == []
    assert min(seconds for seconds, _ in runs) <= 0.2


def test_no_public_name_is_hidden_by_a_module_of_the_same_name():
    """Importing hfscale.x sets the attribute hfscale.x to the module, whatever the public name x stands for."""
    modules = {path.stem for path in (ROOT / "hfscale").iterdir()}
    assert not modules & set(hfscale.__all__)


def test_every_public_name_is_there_and_documented():
    for name in hfscale.__all__:
        assert getattr(hfscale, name).__doc__, name


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_relative_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing


def test_the_readme_picture_is_1200_pixels_wide_and_has_words_beside_it():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    words = re.search(r"!\[.+?\]\(docs/picture\.png\)\s+\*The picture in words: (.+?)\*\n", readme, re.DOTALL).group(1)
    drawn = re.findall(r'^    "(single|\w+=2)": \(', (ROOT / "docs/draw_picture.py").read_text("utf-8"), re.MULTILINE)
    assert len(drawn) == 5 and all(f"`{name}`" in words for name in drawn)
    header = (ROOT / "docs/picture.png").read_bytes()[:24]
    assert header.startswith(b"\x89PNG") and int.from_bytes(header[16:20], "big") == 1200


def test_the_readme_example_works(run_root, capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert "steps=20" in example
    exec(compile(example.replace("steps=20", "steps=2"), "README.md", "exec"), {"__name__": "__main__"})
    assert "tp=2 against single: agrees" in capsys.readouterr().out


def test_the_readme_names_every_variable_that_the_package_reads():
    package = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "hfscale").rglob("*.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(HFSCALE_[A-Z_]+)`", readme)) == set(re.findall(r"HFSCALE_[A-Z_]+", package))


def test_the_notebooks_that_the_readme_starts_exist():
    commands = re.findall(r"jupyter lab ([\w/.]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert commands and all((ROOT / path).exists() for path in commands)


def test_the_licence_is_the_official_text_with_our_name():
    ours = (ROOT / "LICENSE").read_text(encoding="utf-8")
    official = ours.replace("Copyright 2026 The hfscale authors", "Copyright [yyyy] [name of copyright owner]")
    assert PROJECT["license"] == "Apache-2.0" and ours != official
    assert hashlib.sha256(official.encode()).hexdigest() == APACHE_2


def _ci_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pytest(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout
