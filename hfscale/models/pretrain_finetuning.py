"""Does the checkpoint serve its purpose? Twenty fine-tuning steps on pydoc in a plain loop, and what they gain."""

import random

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hfscale.data.pydoc_topics import split_pydoc

STEPS, BATCH, SEQ_LEN, LEARNING_RATE = 20, 16, 128, 1e-3


def finetuning_losses(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> tuple[float, float]:
    """(before, after): nats per token on pydoc's test topics. The model, in fp32, is trained in place.

    What TrainingArguments does with weight_decay=0: AdamW, learning rate linear to zero without warm-up, clipping at 1.
    """
    train, test = (_rows(texts, tokenizer) for texts in split_pydoc())
    before = held_out_loss(model, test)
    order = random.Random(seed).sample(range(len(train)), STEPS * BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    model.train()
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / STEPS)
        batch = _pad([train[i] for i in order[step * BATCH : (step + 1) * BATCH]])
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return before, held_out_loss(model, test)


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, rows: list[list[int]]) -> float:
    """Nats per predicted token over all rows: a mean over tokens, not over batches."""
    model.eval()
    total = tokens = 0
    rows = sorted(rows, key=len)  # rows of like length waste no padding
    for start in range(0, len(rows), BATCH):
        batch = _pad(rows[start : start + BATCH])
        predicted = (batch["labels"][:, 1:] != -100).sum().item()
        total += model(**batch).loss.item() * predicted
        tokens += predicted
    return total / tokens


def _rows(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    return [[*ids, tokenizer.eos_token_id][:SEQ_LEN] for ids in tokenizer(texts, verbose=False)["input_ids"]]


def _pad(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    input_ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    attention_mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "labels": input_ids.masked_fill(attention_mask == 0, -100),
    }
