"""Compare: one recipe under several strategies, each held against one device. The kit's main job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from hfscale.checking.parity import Parity, judge, remove_snapshots
from hfscale.errors import HfscaleError, LaunchError
from hfscale.hardware import cuda_devices, resolve_device
from hfscale.launching.launch import default_threads
from hfscale.launching.run import Run, start
from hfscale.profiling.throughput import tokens_per_second
from hfscale.recipe import Recipe
from hfscale.strategy import Strategy

DEFAULT_STRATEGIES = {
    "pocket-llama": ["single", "ddp=2", "fsdp=2", "tp=2", "fsdp=2,tp=2"],
    "pocket-moe": ["single", "ep=2", "tp=2,ep=2"],
}
DEFAULT_STEPS = 8
POLL_SECONDS = 0.1


@dataclass
class Row:
    """One strategy of a comparison. Fields that a refused or failed run never reached are None or empty.

    losses: of each step, in nats. max_loss_difference: to the reference, over all steps. max_gradient_difference:
    over all parameters, relative (see `Parity`). parameter_bytes_per_rank: what each rank holds of the parameters.
    verdict: "reference", "agrees", "differs" or "refused"; reason: one sentence.
    """

    model: str
    strategy: str
    world_size: int
    precision: str
    losses: list[float] = field(default_factory=list)
    max_loss_difference: float | None = None
    max_gradient_difference: float | None = None
    tokens_per_second: float | None = None
    parameter_bytes_per_rank: list[int] = field(default_factory=list)
    verdict: str = ""
    reason: str = ""


@dataclass
class Comparison:
    """The rows of a comparison in order, and what was counted on the way.

    parity: (model, strategy) -> the full verdict behind a row that was compared.
    """

    rows: list[Row]
    seconds: float
    processes: int
    bytes_moved: int
    counted_steps: int
    parity: dict[tuple[str, str], Parity] = field(default_factory=dict)

    @property
    def gradients(self) -> int:
        """How many gradient numbers were compared, all rows together."""
        return sum(parity.gradients for parity in self.parity.values())

    @property
    def ok(self) -> bool:
        """Whether every row that ran agrees with its reference, and at least one was compared."""
        verdicts = [row.verdict for row in self.rows]
        return "differs" not in verdicts and "agrees" in verdicts

    @property
    def summary(self) -> str:
        """What was measured, in one sentence."""
        ran = [row for row in self.rows if row.losses]
        counts = f"{_count(len(ran), 'run')}, {_count(self.processes, 'process', 'processes')}, "
        counts += f"{self.bytes_moved / 1e6:.0f} MB moved in {_count(self.counted_steps, 'counted step')} each"
        differing = [f"{row.model} under {row.strategy}" for row in self.rows if row.verdict == "differs"]
        if differing:
            return f"{counts}; NOT the same training: {', '.join(differing)}."
        worst = max(
            (row.max_gradient_difference for row in ran if row.max_gradient_difference is not None), default=None
        )
        if worst is None:
            return f"{counts}; nothing was compared."
        return f"{counts}; each of {self.gradients:,} gradient numbers equals one device's within {worst:.0e}."

    def to_dict(self) -> dict:
        return {"ok": self.ok, "seconds": self.seconds, "rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        from hfscale.display.tables import comparison_text

        return comparison_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from hfscale.display.tables import comparison_html

        return comparison_html(self)


Job = list[tuple[Recipe, list[str]]]
Progress = Callable[[list[Row | None], list[tuple[str, str]], int | None, int, int], None]


def compare(
    recipe: Recipe | list[Recipe] | None = None,
    *,
    strategies: list[str] | None = None,
    progress: Progress | None = None,
    **options,
) -> Comparison:
    """Run `recipe` under each of `strategies` and hold every run against the single-device one.

    Without a recipe: the default job, both pocket models under every kind of strategy. "single" is added in front
    where it is missing, since it is the reference. A strategy that the model cannot take becomes a row "refused",
    with the reason. progress(rows, planned, index, step, steps) is called several times a second: rows so far (None:
    not yet), the planned (model, strategy) pairs, the index of the one that runs, and how many of its steps are done.
    options reach the ranks, see `train_recipe`. Raises HfscaleError before anything starts, LaunchError if the
    reference fails.
    """
    return run_job(default_job() if recipe is None else _as_job(recipe, strategies), progress, **options)


def run_job(job: Job, progress: Progress | None = None, **options) -> Comparison:
    """The comparison of a job: for each recipe, its strategies, the first of which is "single". See `compare`."""
    job = on_one_device_kind(job)
    _refuse_when_nothing_can_run(job)
    planned = [(recipe.model, strategy) for recipe, names in job for strategy in names]
    with contextlib.ExitStack() as stack:
        options["threads"] = default_threads(_largest(job))
        collector = _Collector(planned, progress or stack.enter_context(_default_progress(planned)), options)
        for recipe, names in job:
            collector.run_model(recipe, names)
    return collector.comparison()


def _refuse_when_nothing_can_run(job: Job) -> None:
    refusals = []
    for recipe, strategies in job:
        recipe.with_(strategy="single").check()
        refusals += [_refusal(recipe, strategy) for strategy in strategies if strategy != "single"]
    if all(refusals):
        raise HfscaleError(
            " ".join(dict.fromkeys(refusals)) or "There is no strategy to compare: name one beside single."
        )


def _refusal(recipe: Recipe, strategy: str) -> str | None:
    try:
        recipe.with_(strategy=strategy).check()
    except HfscaleError as refusal:
        return str(refusal)
    return None


def comparison_job(model: str | None, strategies: list[str] | None, **changes) -> Job:
    """The default job with other fields; with a model, its own default strategies, or those that every model takes."""
    if model is None and not strategies:
        return default_job(**changes)
    recipe = Recipe(**{"steps": DEFAULT_STEPS, **changes, "model": model or "pocket-llama"})
    wanted = strategies or DEFAULT_STRATEGIES.get(recipe.model, ["ddp=2", "fsdp=2"])
    return _as_job(recipe, wanted)


def on_one_device_kind(job: Job) -> Job:
    """`job` with "auto" settled alike for all rows: on GPUs only if there are enough for the largest, else on the
    CPU.
    """
    return [(recipe.with_(device=resolve_device(recipe.device, _largest(job))), names) for recipe, names in job]


def device_note(job: Job) -> str | None:
    """A sentence for the case that GPUs are there but too few for the largest row, so that all rows use the CPU."""
    gpus, largest = cuda_devices(), _largest(job)
    if job[0][0].device != "auto" or not 0 < gpus < largest:
        return None
    return f"All rows run on the CPU: the largest needs {largest} GPUs and {_count(gpus, 'GPU')} can be used here."


def default_job(**changes) -> Job:
    """The main job as (recipe, strategies) for each pocket model; `changes` are fields of the recipe, such as steps."""
    recipe = Recipe(**{"steps": DEFAULT_STEPS, **changes})
    return [(recipe.with_(model=model), strategies) for model, strategies in DEFAULT_STRATEGIES.items()]


def _as_job(recipe: Recipe | list[Recipe], strategies: list[str] | None) -> Job:
    recipes = recipe if isinstance(recipe, list) else [recipe]
    if not recipes or not all(isinstance(each, Recipe) for each in recipes):
        raise HfscaleError(f"compare needs a Recipe or a list of them; it got {recipe!r}.")
    job = []
    for each in recipes:
        wanted = strategies or ([each.strategy] if each.strategy != "single" else ["ddp=2", "fsdp=2"])
        names = [str(Strategy.parse(strategy)) for strategy in wanted]
        job.append((each, ["single", *(name for name in dict.fromkeys(names) if name != "single")]))
    return job


class _Collector:
    """Runs the planned rows one after the other and keeps what they produced."""

    def __init__(self, planned: list[tuple[str, str]], progress: Progress, options: dict):
        self.planned, self.progress, self.options = planned, progress, options
        self.rows: list[Row | None] = [None] * len(planned)
        self.began = time.perf_counter()
        self.processes = self.bytes_moved = self.counted_steps = 0
        self.parity: dict[tuple[str, str], Parity] = {}

    def run_model(self, recipe: Recipe, strategies: list[str]) -> None:
        recipe = recipe.with_(eval_samples=0)
        reference = None
        try:
            for strategy in strategies:
                index = self.planned.index((recipe.model, strategy))
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
        if reason := _refusal(recipe, strategy):
            row.verdict, row.reason = "refused", reason
            return row, None
        try:
            run = self._run(recipe.with_(strategy=strategy), index)
        except LaunchError as failure:
            if reference is None:
                raise
            row.verdict, row.reason = "differs", f"the run failed: {failure.cause}"
            return row, None
        self._fill(row, run, reference)
        return row, run

    def _run(self, recipe: Recipe, index: int) -> Run:
        run = start(recipe, snapshot=True, **self.options)
        try:
            while run.status == "running":
                self._tell(index, len(run.losses), recipe.steps)
                time.sleep(POLL_SECONDS)
        except BaseException:
            run.stop()
            raise
        return run.wait()

    def _fill(self, row: Row, run: Run, reference: Run | None) -> None:
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
        parity = self.parity[row.model, row.strategy] = judge(run, reference)
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


def _largest(job: Job) -> int:
    """World size of the largest row. All rows get as many threads per rank as it does, so that speed-ups are honest."""
    return max(Strategy.parse(strategy).world_size for _, names in job for strategy in names)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
