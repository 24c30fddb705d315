"""Jobs: which rows a comparison has, on which kind of device they all run, and which are refused."""

from __future__ import annotations

from hfscale.checking.comparable import comparable
from hfscale.checking.comparison import count
from hfscale.errors import HfscaleError
from hfscale.hardware import cuda_devices, resolve_device
from hfscale.recipe import Recipe
from hfscale.strategy import Strategy

Job = list[tuple[Recipe, list[str]]]
"""Recipes, each with its strategies; the first strategy is "single", the reference."""

DEFAULT_STRATEGIES = {
    "pocket-llama": ["single", "ddp=2", "fsdp=2", "tp=2", "fsdp=2,tp=2"],
    "pocket-moe": ["single", "ep=2", "tp=2,ep=2"],
}
FOR_ANY_MODEL = ["ddp=2", "fsdp=2"]
DEFAULT_STEPS = 8


def default_job(**changes) -> Job:
    """The main job: both pocket models, each under its strategies. `changes` are fields of the recipe: steps=3."""
    recipe = Recipe(**{"steps": DEFAULT_STEPS, **changes})
    return [(recipe.with_(model=model), strategies) for model, strategies in DEFAULT_STRATEGIES.items()]


def comparison_job(model: str | None, strategies: list[str] | None, **changes) -> Job:
    """The default job with other fields; with a model, its own default strategies, or those that every model takes."""
    if model is None and not strategies:
        return default_job(**changes)
    recipe = Recipe(**{"steps": DEFAULT_STEPS, "model": "pocket-llama" if model is None else model, **changes})
    return job_of(recipe, strategies or DEFAULT_STRATEGIES.get(recipe.model, FOR_ANY_MODEL))


def job_of(recipe: Recipe | list[Recipe], strategies: list[str] | str | None) -> Job:
    """The job of comparing `recipe`, or each of several, under `strategies`; "single" comes first, asked for or not."""
    recipes = recipe if isinstance(recipe, list) else [recipe]
    if not recipes or not all(isinstance(each, Recipe) for each in recipes):
        raise HfscaleError(f"compare needs a Recipe or a list of them; it got {recipe!r}.")
    if isinstance(strategies, str):
        # One text is one strategy, commas included: "fsdp=2,tp=2" is a combination.
        strategies = [strategies]
    job = []
    for each in recipes:
        wanted = strategies or ([each.strategy] if each.strategy != "single" else FOR_ANY_MODEL)
        names = [str(Strategy.parse(strategy)) for strategy in wanted]
        job.append((each, ["single", *(name for name in dict.fromkeys(names) if name != "single")]))
    return job


def settle(job: Job) -> Job:
    """`job` ready to run: recipes made comparable, and "auto" settled alike for all rows.

    Rows run on GPUs only if there are enough for the largest, else all on the CPU. Raises HfscaleError when a model
    cannot even run on one device, or when every other strategy is refused, so that nothing could be compared.
    """
    job = [(comparable(recipe), strategies) for recipe, strategies in job]
    job = [(recipe.with_(device=resolve_device(recipe.device, largest(job))), names) for recipe, names in job]
    refusals = []
    for recipe, strategies in job:
        recipe.with_(strategy="single").check()
        refusals += [refusal(recipe, strategy) for strategy in strategies if strategy != "single"]
    if all(refusals):
        nothing = "There is no strategy to compare: name one beside single."
        raise HfscaleError(" ".join(dict.fromkeys(refusals)) or nothing)
    return job


def refusal(recipe: Recipe, strategy: str) -> str | None:
    """Why `recipe` cannot run under `strategy`, in a sentence; None when it can."""
    try:
        recipe.with_(strategy=strategy).check()
    except HfscaleError as error:
        return str(error)
    return None


def device_note(job: Job) -> str | None:
    """A sentence for the case that GPUs are there but too few for the largest row, so that all rows use the CPU."""
    gpus, needed = cuda_devices(), largest(job)
    if job[0][0].device != "auto" or not 0 < gpus < needed:
        return None
    return f"All rows run on the CPU: the largest needs {needed} GPUs and {count(gpus, 'GPU')} can be used here."


def largest(job: Job) -> int:
    """World size of the largest row."""
    return max(Strategy.parse(strategy).world_size for _, names in job for strategy in names)
