"""Recorder: a Trainer callback that writes one event per optimizer step, and notes in which precision the model
computed.
"""

from __future__ import annotations

import time

import torch
from transformers import TrainerCallback

from hfscale.errors import HfscaleError
from hfscale.launching.rank import current_rank
from hfscale.precision import Policy
from hfscale.training.events import EventWriter


class Recorder(TrainerCallback):
    """Events `step` (loss, gradient_norm, learning_rate, seconds, tokens) and `eval` (loss) of this rank.

    `loss` is the mean over the target tokens of the global batch, the same on every rank; `tokens` are the real
    tokens (padding and filler rows left out) that this rank read; `seconds` run from the end of one step to the end
    of the next.
    """

    def __init__(self, trainer):
        here = current_rank()
        self.trainer = trainer
        self.events = EventWriter(here.folder / f"rank{here.rank}.jsonl", here.rank, here.started)
        self.steps: list[dict] = []
        self.precision: dict = {
            "weights": sorted({str(p.dtype).removeprefix("torch.") for p in trainer.model.parameters()})
        }
        self._tokens = 0
        self._last = time.perf_counter()
        _count_tokens(trainer, self)
        self._watch_autocast()

    def column(self, name: str) -> list:
        return [step[name] for step in self.steps]

    def evaluate(self) -> float:
        """Evaluation loss now, written as an `eval` event."""
        loss = self.trainer.evaluation_loss()
        self.events.write("eval", step=self.trainer.state.global_step, loss=loss)
        return loss

    def on_train_begin(self, args, state, control, **kwargs):
        self._last = time.perf_counter()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" not in (logs or {}):
            return  # the summary at the end of training
        now = time.perf_counter()
        step = {
            "loss": logs["loss"],
            "gradient_norm": logs.get("grad_norm"),
            "learning_rate": logs.get("learning_rate"),
            "seconds": now - self._last,
            "tokens": self._tokens,
        }
        self._last, self._tokens = now, 0
        self.steps.append(step)
        self.events.write("step", step=state.global_step, steps=args.max_steps, **step)

    def require_precision(self, asked: Policy) -> None:
        """Raise HfscaleError if the forward pass did not compute as `asked`: the request itself proves nothing."""
        wanted = {"bf16": "bfloat16", "fp16": "float16", "no": None}[asked.mixed_precision]
        seen = self.precision.get("autocast")
        if seen != wanted:
            raise HfscaleError(
                f"Precision {asked.name} was asked for, which computes with autocast {wanted or 'off'}; "
                f"the model's forward pass ran with autocast {seen or 'off'}."
            )

    def _watch_autocast(self) -> None:
        """Note the autocast dtype inside the forward pass of training, at the first layer that holds a matrix."""
        device = self.trainer.args.device.type
        layer = next(m for m in self.trainer.model.modules() if isinstance(m, torch.nn.Linear))

        def note(module, inputs):
            if module.training:
                on = torch.is_autocast_enabled(device)
                self.precision["autocast"] = (
                    str(torch.get_autocast_dtype(device)).removeprefix("torch.") if on else None
                )
                handle.remove()

        handle = layer.register_forward_pre_hook(note)


def _count_tokens(trainer, recorder: Recorder) -> None:
    """Add up the real tokens of every batch that the trainer takes for a step."""
    plain = trainer.get_batch_samples

    def get_batch_samples(*args, **kwargs):
        batches, targets = plain(*args, **kwargs)
        for batch in batches:
            real = batch["labels"].ne(-100).any(dim=1, keepdim=True)  # a filler row has no label
            recorder._tokens += int((batch["attention_mask"] * real).sum())
        return batches, targets

    trainer.get_batch_samples = get_batch_samples
