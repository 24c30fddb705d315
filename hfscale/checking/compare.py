"""Compare: one recipe under several strategies, each held against one device. The kit's main job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from hfscale.checking import jobs
from hfscale.checking.comparison import Comparison, Row
from hfscale.checking.jobs import Job
from hfscale.checking.parity import Parity, judge, remove_snapshots
from hfscale.errors import LaunchError
from hfscale.launching.launch import default_threads
from hfscale.launching.processes import without_interrupts
from hfscale.launching.run import Run, start
from hfscale.profiling.throughput import tokens_per_second
from hfscale.recipe import Recipe
from hfscale.strategy import Strategy

POLL_SECONDS = 0.1

Progress = Callable[[list[Row | None], list[tuple[str, str]], int | None, int, int], None]


def compare(
    recipe: Recipe | list[Recipe] | None = None,
    *,
    strategies: list[str] | str | None = None,
    progress: Progress | None = None,
    trainer_class: type | None = None,
    setup: Callable[[], None] | None = None,
) -> Comparison:
    """Run `recipe` under each of `strategies` and hold every run against the single-device one.

    Without a recipe: the default job, both pocket models under every kind of strategy. "single" is added in front
    where it is missing, since it is the reference. A strategy that the model cannot take becomes a row "refused",
    with the reason. progress(rows, planned, index, step, steps) is called several times a second: rows so far (None:
    not yet), the planned (model, strategy) pairs, the index of the one that runs, and how many of its steps are done.
    `trainer_class` and `setup` reach the ranks, see `train_recipe`. Raises HfscaleError before anything starts,
    LaunchError if the reference fails.
    """
    job = jobs.comparison_job(None, strategies) if recipe is None else jobs.job_of(recipe, strategies)
    options = {"trainer_class": trainer_class, "setup": setup}
    return run_job(job, progress, **{name: value for name, value in options.items() if value is not None})


def run_job(job: Job, progress: Progress | None = None, **options) -> Comparison:
    """The comparison of a job: for each recipe, its strategies, the first of which is "single". See `compare`."""
    job = jobs.settle(job)
    planned = [(recipe.model, strategy) for recipe, names in job for strategy in names]
    # As many threads per rank in every row, so that speeds can be compared.
    options["threads"] = default_threads(jobs.largest(job))
    with contextlib.ExitStack() as stack:
        collector = _Collector(planned, progress or stack.enter_context(_default_progress(planned)), options)
        for recipe, names in job:
            collector.run_model(recipe, names)
    return collector.comparison()


class _Collector:
    """Runs the planned rows one after the other and keeps what they produced."""

    def __init__(self, planned: list[tuple[str, str]], progress: Progress, options: dict):
        self.planned, self.progress, self.options = planned, progress, options
        self.rows: list[Row | None] = [None] * len(planned)
        self.began = time.perf_counter()
        self.processes = self.bytes_moved = self.counted_steps = 0
        self.parity: list[Parity | None] = [None] * len(planned)

    def run_model(self, recipe: Recipe, strategies: list[str]) -> None:
        reference = None
        try:
            for strategy in strategies:
                index = self.rows.index(None)
                self.rows[index], run = self._row(recipe, strategy, index, reference)
                if strategy == "single":
                    reference = run
                elif run:
                    remove_snapshots(run)
                self._tell(index, recipe.steps, recipe.steps)
        finally:
            if reference:
                remove_snapshots(reference)

    def comparison(self) -> Comparison:
        seconds = time.perf_counter() - self.began
        return Comparison(self.rows, seconds, self.processes, self.bytes_moved, self.counted_steps, self.parity)

    def _row(self, recipe: Recipe, strategy: str, index: int, reference: Run | None) -> tuple[Row, Run | None]:
        row = Row(recipe.model, strategy, Strategy.parse(strategy).world_size, recipe.precision)
        if reason := jobs.refusal(recipe, strategy):
            row.verdict, row.reason = "refused", reason
            return row, None
        try:
            run = self._run(recipe.with_(strategy=strategy), index)
        except LaunchError as failure:
            if reference is None:
                raise
            row.verdict, row.reason = "differs", f"the run failed: {failure.cause}"
            return row, None
        self._fill(row, run, reference, index)
        return row, run

    def _run(self, recipe: Recipe, index: int) -> Run:
        run = start(recipe, snapshot=True, **self.options)
        try:
            while run.status == "running":
                self._tell(index, len(run.losses), recipe.steps)
                time.sleep(POLL_SECONDS)
            return run.wait()
        except BaseException:
            with without_interrupts():
                run.stop()
                remove_snapshots(run)
            raise

    def _fill(self, row: Row, run: Run, reference: Run | None, index: int) -> None:
        by_rank = run.result["by_rank"]
        traffic = [rank["traffic"] for rank in by_rank]
        self.processes += len({rank["pid"] for rank in by_rank})
        self.bytes_moved += sum(flow["bytes"] for rank in traffic for flow in rank["rows"])
        self.counted_steps = max(self.counted_steps, traffic[0]["steps"])
        row.losses = by_rank[0]["losses"]
        row.tokens_per_second = tokens_per_second(by_rank, skip=traffic[0]["steps"])
        row.parameter_bytes_per_rank = [rank["parameter_bytes"] for rank in by_rank]
        if reference is None:
            row.verdict, row.reason = "reference", "the run on one device, which the others are compared with"
            return
        parity = self.parity[index] = judge(run, reference)
        differences = {quantity.name: quantity.worst for quantity in parity.rows}
        row.max_loss_difference = differences["loss"]
        row.max_gradient_difference = differences["gradients"]
        row.verdict = "agrees" if parity.ok else "differs"
        row.reason = parity.reason

    def _tell(self, index: int | None, step: int, steps: int) -> None:
        self.progress(self.rows, self.planned, index, step, steps)


@contextlib.contextmanager
def _default_progress(planned: list[tuple[str, str]]):
    """A progress line over all runs, in a terminal or a notebook; nothing where output goes to a file."""
    from hfscale.display.progress import progress_line

    with progress_line("compare", len(planned)) as line:

        def tell(
            rows: list[Row | None], planned: list[tuple[str, str]], index: int | None, step: int, steps: int
        ) -> None:
            done = sum(row is not None for row in rows)
            model, strategy = planned[index or 0]
            line.update(done, "done" if done == len(rows) else f"{model} · {strategy}, step {step}/{steps}")

        yield tell
