"""hs.run, hs.start, hs.runs, hs.open_run: a recipe in real ranks, and the handle on its folder."""

from __future__ import annotations

import html
import importlib.metadata
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfscale.errors import HfscaleError
from hfscale.hardware import usable_cores
from hfscale.launching import folders
from hfscale.launching.failure import read_failure
from hfscale.launching.launch import (
    INTERRUPT_GRACE,
    Launch,
    check_placement,
    check_threads,
    check_timeout,
    default_threads,
    start_launch,
)
from hfscale.launching.processes import Process, read_json, without_interrupts, write_json
from hfscale.training.events import last_event, read_events

if TYPE_CHECKING:
    from hfscale.recipe import Recipe

TRAINING_ENTRY = "hfscale.training.rank:train_recipe"
TRAINING_OPTIONS = ("setup", "snapshot", "trainer_class")
"""Keywords of `train_recipe`, which is imported in the ranks only, since it needs torch."""

VERSIONS_OF = ("hfscale", "torch", "transformers", "accelerate", "datasets")


def run(recipe: Recipe, *, timeout: float | None = None, threads: int | None = None, **options: Any) -> Run:
    """Train `recipe` in ranks of its own, show how far it is, wait, and return the finished Run.

    Takes what `start` takes. Raises LaunchError when a rank fails; Ctrl-C ends all ranks and is passed on.
    """
    return start(recipe, timeout=timeout, threads=threads, **options).wait(progress=True)


def start(recipe: Recipe, *, timeout: float | None = None, threads: int | None = None, **options: Any) -> Run:
    """Start training `recipe` and return at once. The run ends when this process ends.

    timeout: seconds until the run is given up. threads: CPU threads of each rank, by default cores // ranks; give both
    sides of a comparison the same number. options: `trainer_class` (a subclass of ScaleTrainer), `setup` (a
    function called first in every rank), `snapshot` (True: write first gradient and first and last parameters to the
    folder). Raises HfscaleError, before any rank starts, when the recipe cannot work.
    """
    _check_recipe(recipe, options)
    check_timeout(timeout)
    check_threads(threads)
    world_size = recipe.parsed_strategy.world_size
    device = check_placement(world_size, recipe.device)
    recipe.check()
    _check_trainer_class(options.get("trainer_class"))
    threads = threads or default_threads(world_size)
    folder = folders.new_run_folder("run")
    with folders.starting(folder):
        with folders.writing(folder):
            recipe.save(folder / folders.RECIPE)
            write_json(folder / "environment.json", _environment(device, threads))
        launched = start_launch(
            TRAINING_ENTRY,
            (recipe.to_dict(),),
            options,
            world_size=world_size,
            folder=folder,
            device=device,
            threads=threads,
            precision=_mixed_precision(recipe),
            timeout=timeout,
            values="json",
        )
    return Run(folder, launched)


def runs() -> Runs:
    """The runs of recipes under the runs root (HFSCALE_RUNS, by default ./hfscale-runs), newest first."""
    return Runs(
        Run(folder) for folder in folders.run_folders(folders.runs_root()) if (folder / folders.RECIPE).exists()
    )


def open_run(path: str | Path) -> Run:
    """The run in the folder `path`, or of that name under the runs root, also of another process or machine."""
    if not isinstance(path, str | Path):
        raise HfscaleError(f"open_run takes the path or the name of a run's folder; got a {type(path).__name__}.")
    root = folders.runs_root()
    try:
        given = Path(path).expanduser()
        folder = given if given.exists() else root / given
        found = folder.is_dir()
    except (
        OSError,
        RuntimeError,
    ):  # a name too long for the system, a folder that may not be entered, an unknown ~user
        found = False
    if not found:
        raise HfscaleError(f"There is no run folder {_shortened(path)}. hfscale.runs() lists those under {root}.")
    if not (folder / folders.RECIPE).exists() or not (folder / folders.MARKER).exists():
        raise HfscaleError(
            f"{folder} is not the folder of a run: it has no {folders.RECIPE} beside a {folders.MARKER}."
        )
    return Run(folder.absolute())


class Run:
    """One recipe's run. Everything is read from its folder, so that it can be opened again later, or elsewhere."""

    def __init__(self, folder: Path, launched: Launch | None = None):
        self.folder = Path(folder)
        self._launched = launched  # only in the process that started it

    @property
    def recipe(self) -> Recipe:
        from hfscale.recipe import Recipe

        return Recipe.load(self.folder / folders.RECIPE)

    @property
    def status(self) -> str:
        """ "running", "finished", "failed" or "stopped"."""
        if self._launched is not None:
            return self._launched.state  # what we started is over when its life line is closed, whatever still dies
        alive = (
            folders.is_running(self.folder) or self._is_warming_up()
        )  # asked first: the outcome is written before the end
        outcome = read_json(self.folder / folders.OUTCOME)
        return outcome["state"] if outcome else "running" if alive else "failed"

    def wait(self, timeout: float | None = None, progress: bool = False) -> Run:
        """Wait until the run is over, at most `timeout` seconds, and return it; `status` says how it went.

        progress: show how far it is, in a terminal or a notebook. Raises LaunchError when it failed. Ctrl-C ends the
        run.
        """
        try:
            if progress:
                from hfscale.display.progress import follow

                follow(self, timeout)
            else:
                self._wait(timeout)
        except KeyboardInterrupt:
            with without_interrupts():
                self.stop(grace=INTERRUPT_GRACE)
            raise
        if self.status == "failed":
            raise read_failure(self.folder)
        return self

    def stop(self, grace: float = 3.0) -> None:
        """End all ranks, after `grace` seconds by force. What they have written stays. May be repeated."""
        if self._launched is None and self.status == "running":
            raise HfscaleError(
                f"The run {self.folder.name} belongs to another process, which alone can stop it: "
                "stop it there, or end that process."
            )
        if self._launched is not None:
            self._launched.stop(grace)

    @property
    def losses(self) -> list[float]:
        """Training loss of each optimizer step so far."""
        return [event["loss"] for event in self.events() if event["kind"] == "step" and "loss" in event]

    def events(self, rank: int | None = 0) -> list[dict[str, Any]]:
        """What a rank has reported so far, or all of them by time with rank=None."""
        return read_events(self.folder, rank)

    def last_step(self) -> dict[str, Any] | None:
        """The newest `step` event of rank 0."""
        return last_event(self.folder, "step")

    def tail(self, rank: int = 0, lines: int = 20) -> str:
        """The last lines that a rank has printed, warnings of libraries included."""
        return folders.tail(self.folder / f"rank{rank}.log", lines)

    @property
    def result(self) -> dict[str, Any]:
        """{"by_rank": [what each rank returned]}; raises HfscaleError when there is none (yet)."""
        result = read_json(self.folder / folders.RESULT)
        if result is None:
            advice = "wait() for it" if self.status == "running" else "wait() says why"
            raise HfscaleError(f"The run {self.folder.name} has no result: it is {self.status}; {advice}.")
        return result

    def _wait(self, timeout: float | None) -> bool:
        """Wait until it is over, at most `timeout` seconds; returns whether it is."""
        if self._launched is not None:
            return self._launched.wait(timeout)
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while self.status == "running":  # another process's run: there is only the folder to look at
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        return True

    def _is_warming_up(self) -> bool:
        """Whether the process that made the folder still waits for its server: there is no supervisor yet."""
        marker = read_json(self.folder / folders.MARKER)
        if marker is None or (self.folder / "supervisor.log").exists():
            return False
        caller = marker.get("caller")
        return time.time() - marker["created"] < 120 and (caller is None or Process(**caller).alive)

    def _facts(self) -> dict[str, str]:
        last = self.last_step() or {}
        loss = f"{last['loss']:.4f}" if "loss" in last else "-"
        try:
            recipe = self.recipe
            what = {"model": recipe.model, "strategy": recipe.strategy, "precision": recipe.precision}
            step = f"{last.get('step', 0)}/{recipe.steps}"
        except HfscaleError:  # removed, or of another version of hfscale: one such folder must not hide the others
            what, step = dict.fromkeys(("model", "strategy", "precision"), "-"), str(last.get("step", 0))
        return {"run": self.folder.name, "status": self.status, **what, "step": step, "loss": loss}

    def __repr__(self) -> str:
        facts = self._facts()
        return f"Run({facts.pop('run')}: {', '.join(f'{name} {value}' for name, value in facts.items())})"

    def _repr_html_(self) -> str:
        return _html_table([self._facts()])


class Runs(list):
    """A list of Run that shows as a table."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "No runs yet: hfscale.run(recipe) makes one."

    def _repr_html_(self) -> str:
        return _html_table([run._facts() for run in self]) if self else f"<p>{html.escape(repr(self))}</p>"


def _check_recipe(recipe: Any, options: dict[str, Any]) -> None:
    from hfscale.recipe import Recipe

    if not isinstance(recipe, Recipe):
        raise HfscaleError(
            f"A run needs a Recipe, such as hfscale.Recipe(strategy='ddp=2'); got a {type(recipe).__name__}."
        )
    for name in options:
        if name not in TRAINING_OPTIONS:
            raise HfscaleError(
                f"A run has no option {name!r}: it has timeout, threads, {', '.join(TRAINING_OPTIONS)}. What belongs "
                "to the experiment goes into the recipe."
            )
    setup = options.get("setup")
    if setup is not None and not callable(setup):
        raise HfscaleError(
            f"setup={setup!r}: expected a function that every rank calls first; did you write setup=fn() for setup=fn?"
        )


def _check_trainer_class(trainer_class: Any) -> None:
    if trainer_class is None:
        return
    from hfscale.training.trainer import ScaleTrainer  # it imports torch, which the recipe's own check has by now

    if not isinstance(trainer_class, type) or not issubclass(trainer_class, ScaleTrainer):
        raise HfscaleError(
            f"trainer_class={trainer_class!r}: expected a class derived from hfscale.ScaleTrainer: "
            "class MyTrainer(hfscale.ScaleTrainer): ..."
        )


def _shortened(path: str | Path, length: int = 200) -> str:
    return text if len(text := str(path)) <= length else f"{text[:length]}…"


def _mixed_precision(recipe: Recipe) -> str:
    from hfscale.precision import policy

    return policy(recipe.precision).mixed_precision


def _environment(device: str, threads: int) -> dict[str, Any]:
    """What the numbers of a run depend on. No names of persons or paths: runs are passed on."""
    versions = {}
    for name in VERSIONS_OF:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    machine = {"python": platform.python_version(), "platform": platform.platform(), "cores": usable_cores()}
    return {**machine, "versions": versions, "device": device, "threads_per_rank": threads}


def _html_table(rows: list[dict[str, str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row.values()) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
