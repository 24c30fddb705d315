"""README.md beside a checkpoint: what it is, how it was made, and how good it is; read by people, and by a test."""

import platform
from pathlib import Path

import torch
import transformers
import yaml

CARD = """\
---
{metadata}---

# {model}

A {architecture} of {parameters:,} parameters that ships with hfscale, so that distributed training can be
learned and tested without a network: small enough for a laptop's CPU, pretrained enough that fine-tuning is
fine-tuning. It is of no use for anything else. The tokenizer is a byte-level BPE of {vocabulary:,} tokens, the same
for all pocket language models. Weights are stored in bf16. Windows longer than {window_tokens} tokens were not trained.

**Data.** The docstrings of the standard library of Python {python}: {train_docstrings:,} distinct ones
({train_tokens:,} tokens) to train on, {held_out_docstrings:,} ({held_out_tokens:,} tokens) held out by the hash of
their text. Those that quote `pydoc_data` are left out.

**Pretraining.** {pretraining_steps:,} steps of {windows_per_step} windows of {window_tokens} tokens in fp32, AdamW,
peak learning rate {peak_learning_rate}, seed {seed}, {pretraining_seconds} s with {threads} CPU thread(s).
Made by `python -m hfscale.models.pretrain {model}`.

| on held-out docstrings | nats per token |
| --- | --- |
| {model} | {model_loss} |
| bigram model (interpolated Witten-Bell) | {bigram_loss} |
| unigram model | {unigram_loss} |

**Fine-tuning on pydoc.** Twenty default steps (AdamW, 1e-3 to zero, global batch 16, 128 tokens, fp32) take held-out
topics from {finetuning_before} to {finetuning_after} nats per token: the mean of {finetuning_orders} orders of the
passages, the smallest gain being {finetuning_smallest_gain}.

Losses are those of the weights as stored, loaded in fp32.
"""


def write(model: str, folder: Path, facts: dict) -> None:
    """Write the card. All of `facts` stands in its YAML header under `hfscale`, which is what a program should read."""
    facts = {
        "model": model,
        **facts,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }
    header = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "language": "en",
        "license": "apache-2.0",
        "hfscale": facts,
    }
    text = CARD.format(metadata=yaml.safe_dump(header, sort_keys=False), **facts)
    (folder / "README.md").write_text(text, encoding="utf-8")
