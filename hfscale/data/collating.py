"""Rows of token ids to a batch of tensors, padded to the longest row of the batch and no further."""

from __future__ import annotations

from collections.abc import Sequence

import torch

IGNORED = -100
"""The label that cross-entropy leaves out."""


class CausalCollator:
    """Rows {"input_ids"} → int64 tensors `input_ids`, `attention_mask` and `labels`, each [B, longest row].

    Labels equal input_ids (the model shifts them itself), and are IGNORED where the row is padded. Where a row ends is
    known by its length, not by the padding token: many tokenizers pad with the token that also ends a text, whose
    prediction must be learned.
    """

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[dict]) -> dict[str, torch.Tensor]:
        lengths = [len(row["input_ids"]) for row in rows]
        shape = (len(rows), max(lengths))
        input_ids = torch.full(shape, self.pad_token_id, dtype=torch.int64)
        attention_mask = torch.zeros(shape, dtype=torch.int64)
        labels = torch.full(shape, IGNORED, dtype=torch.int64)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            input_ids[i, :length] = torch.as_tensor(row["input_ids"], dtype=torch.int64)
            attention_mask[i, :length] = 1
            labels[i, :length] = input_ids[i, :length]
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
