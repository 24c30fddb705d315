"""Every sample once per epoch, the same global batches under every layout, and fillers that weigh nothing."""

import itertools

import pytest
import torch

from hfscale.data.batching import FILLER, GlobalBatches, MaskFiller, WithFiller

GLOBAL_BATCH = 8


def windows(samples, data_ranks, accumulation, seed=0, epoch=0):
    """The set of samples in each optimizer step, and the micro-batches of each rank."""
    size = GLOBAL_BATCH // data_ranks // accumulation
    ranks = [GlobalBatches(samples, size, data_ranks, rank, seed) for rank in range(data_ranks)]
    for batches in ranks:
        batches.set_epoch(epoch)
    per_rank = [list(batches) for batches in ranks]
    assert [len(batches) for batches in ranks] == [len(rows) for rows in per_rank]
    steps = []
    for start in range(0, len(per_rank[0]), accumulation):
        rows = [i for rank in per_rank for micro in rank[start : start + accumulation] for i in micro]
        steps.append(sorted(i for i in rows if i != FILLER))
    return steps, per_rank


@pytest.mark.parametrize("samples", range(1, 3 * GLOBAL_BATCH + 1))
def test_global_batches_do_not_depend_on_ranks_or_accumulation(samples):
    reference, _ = windows(samples, 1, 1)
    assert sorted(itertools.chain(*reference)) == list(range(samples))
    for data_ranks, accumulation in [(2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (8, 1)]:
        steps, per_rank = windows(samples, data_ranks, accumulation)
        assert steps == reference
        assert len({len(rank) for rank in per_rank}) == 1, "ranks have different numbers of micro-batches: that hangs"
        assert all(micro for rank in per_rank for micro in rank), "a rank has an empty batch"


def test_order_changes_with_epoch_and_seed_and_with_nothing_else():
    first = windows(20, 1, 1)[1]
    assert windows(20, 1, 1)[1] == first
    assert windows(20, 1, 1, epoch=1)[1] != first
    assert windows(20, 1, 1, seed=1)[1] != first
    assert windows(20, 1, 1, seed=1, epoch=0)[1] != windows(20, 1, 1, seed=0, epoch=1)[1]
    assert windows(20, 1, 1, seed=None)[1][0][0] == list(range(8))


def test_filler_rows_are_masked_and_real_rows_are_not():
    def collate(rows):
        return {"labels": torch.tensor([row["input_ids"] for row in rows])}

    data = WithFiller([{"input_ids": [1, 2]}, {"input_ids": [3, 4]}])
    batch = MaskFiller(collate)([data[1], data[FILLER]])
    assert batch["labels"].tolist() == [[3, 4], [-100, -100]]
    assert MaskFiller(collate)([data[0]])["labels"].tolist() == [[1, 2]]
