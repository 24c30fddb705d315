"""Recipe: one fine-tuning job as plain data. What it trains, where the work happens, and how precise it is."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfscale import precision as precisions
from hfscale.errors import HfscaleError
from hfscale.strategy import Strategy

if TYPE_CHECKING:
    from transformers import TrainingArguments

TASKS = ("causal-lm",)
DEVICES = ("auto", "cpu", "cuda")
LARGEST_SEED = 2**32 - 1

# TrainingArguments that follow from a field of the recipe: naming them a second time would leave two truths.
OWNERS = {
    "max_steps": "steps",
    "num_train_epochs": "steps",
    "learning_rate": "learning_rate",
    "seed": "seed",
    "data_seed": "seed",
    "per_device_train_batch_size": "global_batch",
    "auto_find_batch_size": "global_batch",
    "gradient_accumulation_steps": "gradient_accumulation",
    "bf16": "precision",
    "fp16": "precision",
    "tf32": "precision",
    "use_cpu": "device",
    "ddp_backend": "device",
    "fsdp": "strategy",
    "fsdp_config": "strategy",
    "deepspeed": "strategy",
    "parallelism_config": "strategy",
    "accelerator_config": "strategy",
    "output_dir": "the run folder",
    "push_to_hub": "the run folder, which is not uploaded",
    "hub_token": "the run folder, which is not uploaded",
    "hub_model_id": "the run folder, which is not uploaded",
    "report_to": "the run folder",
    "logging_steps": "the run folder",
    "logging_strategy": "the run folder",
    "average_tokens_across_devices": "hfscale, which always averages over tokens",
}


@dataclass(frozen=True)
class Recipe:
    """One fine-tuning job. Change *where* it runs (`strategy`, `device`) or *how precisely* (`precision`) and nothing
    else.

    model: a model of the kit ("pocket-llama", "pocket-moe"), a local folder, or a Hub id.
    data: "pydoc", a local .txt, .json, .jsonl, .csv or .parquet file, or a Hub id.
    task: what is learned; "causal-lm" predicts the next token.
    strategy: "single", "ddp=2", "fsdp=2", "tp=2", "ep=2", or a combination such as "fsdp=2,tp=2".
    precision: "fp32", "bf16", "fp16" or "tf32" (the last two on NVIDIA GPUs).
    global_batch: sequences per optimizer step, over all data ranks (ddp x fsdp) and accumulation steps together.
    gradient_accumulation: into how many micro-batches each rank cuts its share of the global batch.
    seq_len: longest sequence in tokens; longer texts are cut.
    steps: optimizer steps.
    train_samples, eval_samples: use only the first so many samples; None means all, eval_samples=0 skips evaluation.
    device: "auto" (GPUs if there are enough, else the CPU), "cpu" or "cuda".
    training_arguments: any other field of transformers.TrainingArguments.
    """

    model: str = "pocket-llama"
    data: str = "pydoc"
    task: str = "causal-lm"
    strategy: str = "single"
    precision: str = "fp32"
    global_batch: int = 16
    gradient_accumulation: int = 1
    seq_len: int = 128
    steps: int = 20
    learning_rate: float = 1e-3
    seed: int = 0
    train_samples: int | None = None
    eval_samples: int | None = None
    device: str = "auto"
    training_arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        for name, kinds in {"strategy": Strategy, "model": os.PathLike, "data": os.PathLike}.items():
            if isinstance(value := getattr(self, name), kinds):
                object.__setattr__(self, name, str(value))
        _check_texts(self)
        _check_numbers(self)
        _check_training_arguments(self)
        object.__setattr__(self, "training_arguments", dict(self.training_arguments))  # later changes do not reach it
        precisions.policy(self.precision, self.device)
        self.per_device_batch  # noqa: B018 - refuses a batch that the ranks cannot share

    # -- what follows from the fields ---------------------------------------------------------------------------

    @property
    def parsed_strategy(self) -> Strategy:
        return Strategy.parse(self.strategy)

    @property
    def per_device_batch(self) -> int:
        """Sequences in one forward pass of one rank: global_batch / (ddp x fsdp x gradient_accumulation)."""
        ranks = self.parsed_strategy.data_ranks
        share = ranks * self.gradient_accumulation
        if self.global_batch % share:
            below = self.global_batch - self.global_batch % share
            legal = [size for size in (below, below + share) if size]
            raise HfscaleError(
                f"global_batch={self.global_batch} cannot be shared by {ranks} data ranks with "
                f"gradient_accumulation={self.gradient_accumulation}: it must be a multiple of {share}, such as "
                f"{' or '.join(map(str, legal))}."
            )
        return self.global_batch // share

    def as_training_arguments(self) -> dict[str, Any]:
        """The transformers.TrainingArguments that this recipe stands for, as keywords; what is not named is their
        default.
        """
        return {
            "max_steps": self.steps,
            "per_device_train_batch_size": self.per_device_batch,
            "gradient_accumulation_steps": self.gradient_accumulation,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            "save_strategy": "no",
            # Every parameter of a causal LM is in its loss: DDP need not look for unused ones after each backward pass.
            "ddp_find_unused_parameters": False,
            "disable_tqdm": True,
            **precisions.policy(self.precision).training_arguments,
            **self.training_arguments,
        }

    def build_training_arguments(self, output_dir: str | Path, device: str) -> TrainingArguments:
        """The real TrainingArguments, for a rank: building them settles the rank's device and process group."""
        from transformers import TrainingArguments

        arguments = TrainingArguments(
            output_dir=str(output_dir),
            use_cpu=device == "cpu",
            report_to="none",
            logging_strategy="steps",
            logging_steps=1,
            # A NaN loss is shown as it is; the default filter would replace it by an average of the losses before it.
            **{"logging_nan_inf_filter": False, **self.as_training_arguments()},
        )
        if arguments.n_gpu > 1:
            # One rank is one device. Trainer would spread a rank without a launcher over all GPUs that it sees.
            arguments._n_gpu = 1
        return arguments

    # -- changing, saving, loading ------------------------------------------------------------------------------

    def with_(self, **changes) -> Recipe:
        """A copy with some fields changed: `recipe.with_(strategy="tp=2")`."""
        _refuse_unknown_keys(changes, "Recipe.with_")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "The recipe") -> Recipe:
        """A recipe from plain data. A field that is missing takes its default, so that old files keep their meaning."""
        if not isinstance(values, dict):
            raise HfscaleError(
                f"{source} is a {type(values).__name__}: expected an object of fields such as model and strategy."
            )
        _refuse_unknown_keys(values, source)
        return cls(**values)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "The recipe") -> Recipe:
        try:
            values = json.loads(text)
        except RecursionError:
            raise HfscaleError(f"{source} is nested too deeply to be a recipe.") from None
        except json.JSONDecodeError as error:
            raise HfscaleError(
                f"{source} is not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}."
            ) from None
        return cls.from_dict(values, source)

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        path.write_text(self.to_json(), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read a recipe from a JSON file; raises HfscaleError when it is missing, unreadable or not a recipe."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        except FileNotFoundError:
            raise HfscaleError(f"There is no recipe file {path}.") from None
        except (OSError, TypeError, ValueError) as error:
            raise HfscaleError(f"The recipe file {path} cannot be read: {error}.") from None
        return cls.from_json(text, source=f"The recipe file {path}")

    # -- checks that need the model and the data ----------------------------------------------------------------

    def check(self) -> None:
        """Everything that can be refused before a process starts. Raises HfscaleError.

        Reads the model's configuration and looks at the data file, and builds nothing. Costs the import of transformers
        the first time.
        """
        from hfscale.data.sources import check_source
        from hfscale.hardware import resolve_device
        from hfscale.models import check_model

        device = resolve_device(self.device, self.parsed_strategy.world_size)
        precisions.policy(self.precision, device)
        check_source(self.data)
        config = check_model(self.model, self.task)
        self.parsed_strategy.check(config, self.model)
        _check_length(self, config)
        _check_arguments(self)


def _check_texts(recipe: Recipe) -> None:
    for name in ("model", "data", "task", "strategy", "precision", "device"):
        value = getattr(recipe, name)
        if not isinstance(value, str) or not value.strip():
            raise HfscaleError(f"Recipe field {name} is {value!r}: expected a non-empty text.")
    if recipe.task not in TASKS:
        raise HfscaleError(f"Task {recipe.task!r} is unknown: choose one of {', '.join(TASKS)}.")
    if recipe.device not in DEVICES:
        raise HfscaleError(f"Device {recipe.device!r} is unknown: choose one of {', '.join(DEVICES)}.")


def _check_numbers(recipe: Recipe) -> None:
    least = {"global_batch": 1, "gradient_accumulation": 1, "seq_len": 2, "steps": 1, "seed": 0}
    least |= {
        name: minimum
        for name, minimum in {"train_samples": 1, "eval_samples": 0}.items()
        if getattr(recipe, name) is not None
    }
    for name, minimum in least.items():
        value = getattr(recipe, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise HfscaleError(f"Recipe field {name} is {value!r}: expected a whole number of at least {minimum}.")
    if recipe.seed > LARGEST_SEED:
        raise HfscaleError(
            f"Recipe field seed is {recipe.seed}: expected at most {LARGEST_SEED}, the largest that numpy takes."
        )
    rate = recipe.learning_rate
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < float("inf"):
        raise HfscaleError(f"Recipe field learning_rate is {rate!r}: expected a number of at least 0, such as 1e-3.")


def _check_training_arguments(recipe: Recipe) -> None:
    if not isinstance(recipe.training_arguments, dict):
        raise HfscaleError(f"Recipe field training_arguments is {recipe.training_arguments!r}: expected a dictionary.")
    for name in recipe.training_arguments:
        if not isinstance(name, str):
            raise HfscaleError(f"training_arguments has the name {name!r}: expected names of TrainingArguments.")
        if owner := OWNERS.get(name):
            where = f"the recipe's field {owner}" if owner in _field_names() else owner
            raise HfscaleError(
                f"training_arguments names {name}, which follows from {where}: set it there, and only there."
            )
    try:
        json.dumps(recipe.training_arguments)
    except (TypeError, ValueError) as error:
        raise HfscaleError(f"training_arguments must be plain data that JSON can hold: {error}.") from None


def _check_arguments(recipe: Recipe) -> None:
    """Names and values of `training_arguments`, alone and under the strategy."""
    if not recipe.training_arguments:
        return
    from hfscale.training.arguments import refusal

    if reason := refusal(recipe.training_arguments, recipe.parsed_strategy, evaluates=recipe.eval_samples != 0):
        raise HfscaleError(reason)


def _check_length(recipe: Recipe, config) -> None:
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit and recipe.seq_len > limit:
        raise HfscaleError(
            f"seq_len={recipe.seq_len} is longer than the {limit} positions of {recipe.model}: use at most {limit}."
        )


def _refuse_unknown_keys(values: dict[str, Any], source: str) -> None:
    for key in values:
        if key not in _field_names():
            raise HfscaleError(
                f"{source} names the field {key!r}, which a recipe does not have.{_close(str(key), _field_names())}"
            )


def _field_names() -> list[str]:
    return [f.name for f in dataclasses.fields(Recipe)]


def _close(name: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=3)
    return (
        f" Did you mean {' or '.join(matches)}?"
        if matches
        else f" It has {', '.join(known)}."
        if len(known) < 20
        else ""
    )
