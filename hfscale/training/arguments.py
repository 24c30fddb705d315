"""TrainingArguments that are wrong in themselves, or do not work under a strategy: refused before a process starts."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from enum import Enum
from typing import Any

import transformers
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames

from hfscale.strategy import Strategy

CHOICES: dict[str, type[Enum]] = {
    "optim": OptimizerNames,
    "lr_scheduler_type": SchedulerType,
    "eval_strategy": IntervalStrategy,
    "save_strategy": SaveStrategy,
}
SAME_BATCHES = ("random", "sequential")  # the orders that do not depend on the number of ranks


def refusal(values: Mapping[str, Any], strategy: Strategy, evaluates: bool) -> str | None:
    """Why these arguments cannot be used under `strategy`, in a sentence; None when they can.

    evaluates: whether the recipe has evaluation data.
    """
    for name, value in values.items():
        if reason := _wrong_value(name, value):
            return reason
    return _wrong_together(values, strategy, evaluates)


def label_smoothing_refusal(smoothing: float, strategy: Strategy) -> str | None:
    """transformers finds out by the name of the model's class whether labels are shifted, and FSDP renames the class.

    So it would smooth unshifted labels (transformers 5.24), a loss that is wrong by some nats.
    """
    if smoothing and strategy.is_sharded and strategy.world_size > strategy.tp:
        return (
            f"label_smoothing_factor={smoothing} gives a wrong loss under '{strategy}': use it with single, ddp or tp."
        )
    return None


def sampling_refusal(order: str) -> str | None:
    if order in SAME_BATCHES:
        return None
    return (
        f"train_sampling_strategy={order!r} depends on the number of ranks, and every strategy gets the same batches "
        "here: use 'random' or 'sequential'."
    )


def _wrong_value(name: str, value: Any) -> str | None:
    fields = {field.name: field for field in dataclasses.fields(TrainingArguments) if field.init}
    if name not in fields:
        close = difflib.get_close_matches(name, fields, n=2)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        return f"training_arguments names {name!r}, which TrainingArguments does not have.{hint}"
    if name in CHOICES:
        legal = [choice.value for choice in CHOICES[name]]
        close = difflib.get_close_matches(str(value), legal, n=3) or legal[:8]
        return (
            None if value in legal else f"training_arguments: {name}={value!r} is unknown; such as {', '.join(close)}."
        )
    default = fields[name].default
    kind = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}.get(type(default))
    if kind and not _fits(value, type(default)):
        return f"training_arguments: {name}={value!r} should be {kind}, such as {default!r}."
    return None


def _fits(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and (value >= 0 or value == -1)
    return isinstance(value, kind)


def _wrong_together(values: Mapping[str, Any], strategy: Strategy, evaluates: bool) -> str | None:
    if reason := sampling_refusal(values.get("train_sampling_strategy", "random")):
        return reason
    if values.get("dataloader_drop_last"):
        return "dataloader_drop_last=True would leave samples out of every epoch, and a recipe reads each of them once."
    if reason := label_smoothing_refusal(values.get("label_smoothing_factor", 0.0), strategy):
        return reason
    if values.get("eval_strategy", "no") != "no" and not evaluates:
        return f"eval_strategy={values['eval_strategy']!r} needs evaluation data, and the recipe says eval_samples=0."
    if values.get("save_strategy", "no") != "no" and strategy.is_sharded and not values.get("save_only_model"):
        return (
            f"save_strategy={values['save_strategy']!r} under '{strategy}' would save optimizer states; transformers "
            f"{transformers.__version__} cannot: add save_only_model=True."
        )
    return None
