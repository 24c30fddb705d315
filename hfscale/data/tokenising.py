"""Passages to token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hfscale.data.quiet import no_progress_bars
from hfscale.errors import HfscaleError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


def tokenise(passages: Dataset, tokenizer: PreTrainedTokenizerBase, seq_len: int) -> Dataset:
    """The column `text` → the column `input_ids`: each passage's tokens and an end-of-text token, cut to seq_len.

    Passages are not joined or padded: lengths stay as different as they are. Those of one token are dropped, since they
    hold nothing to predict. Stays in memory. Raises HfscaleError if nothing is left, or seq_len is below 2.
    """
    if seq_len < 2:
        raise HfscaleError(f"seq_len={seq_len} leaves nothing to predict: use at least 2 tokens.")

    def token_ids(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        rows = tokenizer(batch["text"], truncation=True, max_length=seq_len)["input_ids"]
        rows = [_ended(row, tokenizer.eos_token_id)[:seq_len] for row in rows]
        return {"input_ids": [row for row in rows if len(row) >= 2]}

    with no_progress_bars():
        rows = passages.map(
            token_ids,
            batched=True,
            remove_columns=passages.column_names,
            keep_in_memory=True,
            load_from_cache_file=False,
        )
    if len(rows) == 0:
        raise HfscaleError(f"None of the {len(passages)} passages has two tokens or more: there is nothing to predict.")
    return rows


def _ended(row: list[int], eos: int | None) -> list[int]:
    """Some tokenizers end a text themselves, and some have no such token."""
    return row if eos is None or row[-1:] == [eos] else [*row, eos]
