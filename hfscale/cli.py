"""The `hfscale` command. Libraries are imported inside the commands, so that help and wrong uses answer at once."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hfscale import __version__
from hfscale.errors import HfscaleError, LaunchError

if TYPE_CHECKING:
    from hfscale.checking.comparison import Comparison, Row
    from hfscale.checking.jobs import Job

BAD_USAGE, INTERRUPTED = 2, 130
TABLE_WIDTH = 76  # columns that the table of a comparison needs
NOTEBOOKS = "The lessons: jupyter lab notebooks/00_start_here.ipynb"

app = typer.Typer(
    help="One fine-tuning recipe under every parallel strategy, in real processes, proved to be the same training.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point. What goes wrong is one sentence on stderr, without a traceback; Ctrl-C ends everything in order."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by the caller
        stream.reconfigure(errors="replace")  # a terminal that has no "Δ" or "→" shows "?", and the result is kept
    warnings.formatwarning = lambda message, *place, **more: f"note: {message}\n"
    try:
        _stand_somewhere()
        app()
    except LaunchError as error:
        _fail(str(error), code=1)
    except HfscaleError as error:
        _fail(str(error), code=BAD_USAGE)
    except OSError as error:  # of the output: everything else is told by the parts that use files
        _fail(f"the output cannot be written: {error.strerror}", code=1)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer has caught Ctrl-C by then, and says nothing
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # impatient ones must not interrupt the end
            print("interrupted; all ranks have ended", file=sys.stderr)
        raise


def _stand_somewhere() -> None:
    try:
        os.getcwd()
    except OSError:
        raise HfscaleError(
            "The folder that this command was started in is gone: change into one that exists."
        ) from None


@app.command()
def compare(
    model: Annotated[str | None, typer.Option(help="pocket-llama, pocket-moe, a folder or a Hub id")] = None,
    data: Annotated[str | None, typer.Option(help="pydoc, a text, JSON, CSV or Parquet file, or a Hub id")] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="such as ddp=2 or fsdp=2,tp=2; give it several times")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or tf32")] = None,
    steps: Annotated[int | None, typer.Option(help="optimizer steps of each run")] = None,
    global_batch: Annotated[int | None, typer.Option(help="sequences per optimizer step, over all ranks")] = None,
    seq_len: Annotated[int | None, typer.Option(help="longest sequence in tokens")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the result to this file")] = None,
) -> None:
    """Train the same job under each strategy and hold each against one device. Without options: the kit's main job.

    Exit code 0: every strategy trains the same model; 1: one does not; 2: bad usage.
    """
    from hfscale.checking.compare import run_job
    from hfscale.checking.jobs import comparison_job, device_note

    if json_file:
        _check_writable(json_file)
    fields = {
        "data": data,
        "precision": precision,
        "steps": steps,
        "global_batch": global_batch,
        "seq_len": seq_len,
        "device": device,
    }
    job = comparison_job(model, strategy, **{name: value for name, value in fields.items() if value is not None})
    console = Console()
    if note := device_note(job):
        console.print(note)
    with _progress(console, job) as progress:
        comparison = run_job(job, progress)
    if json_file:
        _write_atomically(json_file, json.dumps(comparison.to_dict(), indent=2) + "\n")
    _show(console, comparison)
    if any(row.verdict == "refused" for row in comparison.rows):
        raise typer.Exit(BAD_USAGE)
    raise typer.Exit(0 if comparison.ok else 1)


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="a recipe as JSON, see hfscale.Recipe.save")],
) -> None:
    """Train one recipe from a JSON file."""
    from hfscale.launching.run import run as run_recipe
    from hfscale.recipe import Recipe

    finished = run_recipe(Recipe.load(recipe))
    losses, evaluation = finished.losses, finished.result["by_rank"][0]["evaluation"]
    print(f"{finished.status}: training loss {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps")
    if evaluation:
        print(f"evaluation loss {evaluation['before']:.3f} → {evaluation['after']:.3f}")
    print(f"run folder: {finished.folder}")


@app.command()
def doctor() -> None:
    """Say what is on this machine, and whether hfscale can work with it."""
    from hfscale.checkup import doctor as look
    from hfscale.display.tables import doctor_table

    seen = look(warm=False)
    Console().print(doctor_table(seen))
    raise typer.Exit(0 if seen.ok else 1)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hfscale {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print it")
    ] = False,
) -> None:
    pass


def _progress(console: Console, job: Job):
    if console.is_terminal and not console.is_dumb_terminal and console.width >= TABLE_WIDTH:
        return _LiveTable(console, job)
    return _Lines(console)


class _LiveTable:
    """The table itself, growing row by row while the runs go on."""

    def __init__(self, console: Console, job: Job):
        from rich.live import Live

        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self(*_nothing_yet(job))

    def __enter__(self):
        self._live.start()
        return self

    def __exit__(self, *exc_info) -> None:
        self._live.stop()

    def __call__(self, rows: list[Row | None], planned: list, index: int | None, step: int, steps: int) -> None:
        from hfscale.display.tables import comparison_table

        running = None if index is None else (index, f"step {step}/{steps}" if step else "starting")
        self._live.update(comparison_table(rows, planned, running))


class _Lines:
    """One line for each finished row: for output that goes to a file or a pipe."""

    def __init__(self, console: Console):
        self._console, self._told = console, set()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info) -> None:
        pass

    def __call__(self, rows: list[Row | None], planned: list, index: int | None, step: int, steps: int) -> None:
        for place, row in enumerate(rows):
            if row is not None and place not in self._told:
                self._told.add(place)
                self._console.print(f"{row.model} {row.strategy}: {row.verdict}", highlight=False)


def _nothing_yet(job: Job):
    planned = [(recipe.model, strategy) for recipe, names in job for strategy in names]
    return [None] * len(planned), planned, None, 0, 0


def _show(console: Console, comparison: Comparison) -> None:
    from hfscale.display.tables import comparison_cells, comparison_reasons, comparison_table

    if console.width >= TABLE_WIDTH:
        console.print(comparison_table(comparison.rows, [(row.model, row.strategy) for row in comparison.rows]))
    else:  # a cut number would read as another number
        for row in comparison.rows:
            console.print(", ".join(filter(None, [row.model, *comparison_cells(row)])), highlight=False)
    for reason in comparison_reasons(comparison.rows):
        console.print(reason, highlight=False)
    console.print(comparison.summary, highlight=False)
    console.print(NOTEBOOKS, highlight=False)


def _check_writable(path: Path) -> None:
    """Find out before minutes of work, not after them."""
    if path.is_dir():
        raise HfscaleError(f"--json {path} is a folder: name a file in it.")
    if path.exists() and not path.is_file():  # a device, such as /dev/null: the new file would take its place
        raise HfscaleError(f"--json {path} is not a file: name one that may be replaced.")
    if not path.absolute().parent.is_dir():
        raise HfscaleError(f"--json {path} cannot be written: there is no folder {path.absolute().parent}.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise HfscaleError(f"--json {path} cannot be written: no permission.")


def _write_atomically(path: Path, text: str) -> None:
    path = path.resolve()  # a link stays, and what it leads to is replaced
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
