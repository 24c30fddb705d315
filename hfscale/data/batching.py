"""Which samples make up each global batch, and which of them a data rank reads: the same under every strategy."""

from __future__ import annotations

from collections.abc import Iterator

import torch

FILLER = -1
"""Stands for a row that is there for its shape only: it is masked completely and weighs nothing in the loss."""


class GlobalBatches(torch.utils.data.Sampler[list[int]]):
    """Batch sampler of one data rank.

    The order of the samples depends on seed and epoch alone (seed None: as they come). It is cut into pieces of
    `batch_size` x `data_ranks` rows, of which each rank reads its share; one piece, or `gradient_accumulation` of them,
    make a global batch. The last piece may be short: every rank still gets a micro-batch, and one without rows gets a
    FILLER. So no sample is read twice in an epoch, none is left out, and a global batch is the same set of samples
    whatever the number of ranks.

    Deliberately not accelerate's sharding: its even batches repeat samples from the start, and the losses then differ
    from the single-device run.
    """

    def __init__(self, samples: int, batch_size: int, data_ranks: int = 1, data_rank: int = 0, seed: int | None = None):
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.data_ranks, self.data_rank = data_ranks, data_rank
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        per_micro_batch = self.batch_size * self.data_ranks
        for start in range(0, self.samples, per_micro_batch):
            first = start + self.data_rank * self.batch_size
            rows = order[first : min(first + self.batch_size, start + per_micro_batch)]
            # One row is enough to give an empty micro-batch a shape; more would only cost time.
            yield rows or [FILLER]

    def __len__(self) -> int:
        """Micro-batches of this rank in one epoch; equal on all ranks."""
        return -(-self.samples // (self.batch_size * self.data_ranks))

    def _order(self) -> list[int]:
        if self.seed is None:
            return list(range(self.samples))
        # A seed of their own for each pair: seed 1, epoch 0 must not be seed 0, epoch 1.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return torch.randperm(self.samples, generator=generator).tolist()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class WithFiller(torch.utils.data.Dataset):
    """A dataset that answers index FILLER with its first sample, marked so that `MaskFiller` masks it."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[dict, bool]:
        return self.dataset[max(index, 0)], index == FILLER


class MaskFiller:
    """Wraps a collator: rows that stand in for missing samples get label -100 everywhere, the loss's sign for
    "ignore".
    """

    def __init__(self, collator):
        self.collator = collator

    def __call__(self, rows: list[tuple[dict, bool]]) -> dict[str, torch.Tensor]:
        batch = self.collator([sample for sample, _ in rows])
        filler = torch.tensor([is_filler for _, is_filler in rows])
        if filler.any():
            batch["labels"][filler] = -100
        return batch
