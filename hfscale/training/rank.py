"""What one rank does for a recipe: load its part of the model, agree with the other ranks, train, and report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

from hfscale import precision as precisions
from hfscale.data.collating import CausalCollator
from hfscale.data.sources import load_passages
from hfscale.data.tokenising import tokenise
from hfscale.launching.rank import current_rank
from hfscale.models import load_tokenizer, resolve
from hfscale.models.weights import require_complete
from hfscale.profiling.traffic import TrafficCounter, mesh_axes
from hfscale.recipe import Recipe
from hfscale.training import agreement, snapshots
from hfscale.training.recorder import Recorder
from hfscale.training.trainer import ScaleTrainer

COUNTED_STEPS = 2
"""Traffic is counted in the first steps only: counting costs some milliseconds per step, and times are taken from the
rest.
"""


def train_recipe(
    recipe: dict,
    *,
    trainer_class: type[ScaleTrainer] | None = None,
    setup: Callable[[], None] | None = None,
    snapshot: bool = False,
) -> dict:
    """Train `recipe` in this rank and return what it saw, as plain data. Every rank of the recipe's strategy calls it.

    trainer_class: a subclass of ScaleTrainer to use in its place.
    setup: called first, in every rank; for registering a model class of one's own, for instance.
    snapshot: write the whole first gradient and the first and last parameters to the run folder (rank 0, safetensors).
    """
    if setup is not None:
        setup()
    here = current_rank()
    recipe = Recipe.from_dict(recipe)
    if recipe.parsed_strategy.world_size == 1:
        _forget_the_launcher()
    device = torch.device(here.device).type
    arguments = recipe.build_training_arguments(here.folder / "checkpoints", device)
    transformers.set_seed(recipe.seed)
    tokenizer = load_tokenizer(recipe.model)
    train_data, eval_data = _datasets(recipe, tokenizer)
    model = _load(recipe)
    _switch_off_router_loss(model)
    trainer = (trainer_class or ScaleTrainer)(
        model=model,
        args=arguments,
        train_dataset=train_data,
        eval_dataset=eval_data,
        data_collator=CausalCollator(tokenizer.pad_token_id),
    )
    agreement.require(
        agreement.of_recipe(recipe)
        | agreement.of_arguments(arguments)
        | agreement.of_versions()
        | agreement.of_rows(train_data)
        | agreement.of_weights(model)
    )
    folder = here.folder if snapshot else None
    return _train(recipe, trainer, folder)


def _train(recipe: Recipe, trainer: ScaleTrainer, snapshot_folder: Path | None) -> dict:
    here = current_rank()
    recorder = Recorder(trainer)
    trainer.add_callback(recorder)
    traffic = TrafficCounter(mesh_axes(trainer.model))
    _count_first_steps(trainer, traffic)
    if snapshot_folder:
        snapshots.write(snapshots.parameters(trainer.model), snapshot_folder / "initial.safetensors")
        snapshots.write_first_gradient(trainer, snapshot_folder / "gradients.safetensors")
    losses = {"before": recorder.evaluate()} if trainer.eval_dataset is not None else {}
    trainer.train()
    if losses:
        losses["after"] = recorder.evaluate()
    if snapshot_folder:
        snapshots.write(snapshots.parameters(trainer.model), snapshot_folder / "final.safetensors")
    asked = precisions.policy(recipe.precision)
    recorder.require_precision(asked)
    data_ranks, data_rank = trainer.data_parallel
    return {
        "rank": here.rank,
        "pid": os.getpid(),
        "world_size": here.world_size,
        "device": str(trainer.args.device),
        "data_rank": data_rank,
        "data_ranks": data_ranks,
        "precision": recorder.precision,
        "losses": recorder.column("loss"),
        "gradient_norms": recorder.column("gradient_norm"),
        "step_seconds": recorder.column("seconds"),
        "tokens": recorder.column("tokens"),
        "evaluation": losses,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "trained_tensors": sum(p.requires_grad for p in trainer.model.parameters()),
        "parameter_bytes": snapshots.local_bytes(trainer.model),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad),
        "traffic": {"steps": min(COUNTED_STEPS, recipe.steps), "rows": traffic.rows()},
        "finished": time.time(),
    }


def _load(recipe: Recipe):
    """This rank's part of the model in fp32, the master weights of every precision; refused if any are missing."""
    model, loading_info = recipe.parsed_strategy.load(
        AutoModelForCausalLM,
        resolve(recipe.model),
        dtype=torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    require_complete(recipe.model, loading_info)
    return model


def _datasets(recipe: Recipe, tokenizer):
    passages = load_passages(recipe.data)
    train = _first(passages["train"], recipe.train_samples)
    train = tokenise(train, tokenizer, recipe.seq_len)
    if recipe.eval_samples == 0:
        return train, None
    return train, tokenise(_first(passages["test"], recipe.eval_samples), tokenizer, recipe.seq_len)


def _first(dataset, samples: int | None):
    return dataset if samples is None else dataset.select(range(min(samples, len(dataset))))


def _switch_off_router_loss(model) -> None:
    """A router's auxiliary loss is a product of means over tokens: averaged over ranks it is another number, by
    construction.
    """
    text = model.config.get_text_config()
    if getattr(text, "output_router_logits", False):
        text.output_router_logits = False


def _forget_the_launcher() -> None:
    """A world of one trains without DDP's wrapper: accelerate takes LOCAL_RANK as the sign of a distributed run."""
    from accelerate.state import AcceleratorState, PartialState

    os.environ.pop("LOCAL_RANK", None)
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()


def _count_first_steps(trainer: ScaleTrainer, traffic: TrafficCounter) -> None:
    """Let `traffic` see forward, backward and gradient reduction of the first optimizer steps."""
    plain_step = trainer.training_step

    def training_step(*args, **kwargs):
        if trainer.state.global_step >= COUNTED_STEPS:
            return plain_step(*args, **kwargs)
        with traffic:
            return plain_step(*args, **kwargs)

    trainer.training_step = training_step
