"""What has to hold before two runs of a recipe can be compared number by number."""

from __future__ import annotations

from numbers import Real

from hfscale.errors import HfscaleError
from hfscale.recipe import Recipe

OF_OTHER_HEADS = ("classifier_", "summary_")  # dropout that a model for other tasks has, and a causal LM has not


def comparable(recipe: Recipe) -> Recipe:
    """`recipe` without evaluation and saving, which no comparison needs. Raises HfscaleError where chance decides.

    Dropout and the like draw random numbers in every rank: other ones than a single device draws, so that correct runs
    differ too.
    """
    if sources := _sources_of_chance(recipe):
        raise HfscaleError(
            f"{recipe.model} cannot be compared: {sources} draws random numbers in training, on each rank others, so "
            "that correct runs differ too. Set it to 0, in the model's config.json or where you have set it."
        )
    unused = ("eval_", "save_", "load_best_model_at_end", "metric_for_best_model")
    arguments = {name: value for name, value in recipe.training_arguments.items() if not name.startswith(unused)}
    return recipe.with_(eval_samples=0, training_arguments=arguments)


def _sources_of_chance(recipe: Recipe) -> str:
    from hfscale.models import load_config

    settings = load_config(recipe.model).get_text_config().to_dict()
    settings = {
        name: value for name, value in settings.items() if "drop" in name and not name.startswith(OF_OTHER_HEADS)
    }
    settings["neftune_noise_alpha"] = recipe.training_arguments.get("neftune_noise_alpha")
    on = {name: value for name, value in settings.items() if _is_positive(value)}
    return ", ".join(f"{name}={value}" for name, value in on.items())


def _is_positive(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value > 0
