"""Checks of the exercises in 00_start_here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hfscale.errors import HfscaleError
from hfscale.exercises.result import SECONDS, Checked, NotAttempted, Wrong, attempt, checked
from hfscale.launching.launch import launch
from hfscale.recipe import Recipe

LEAST_BATCH = 10


def check_my_rows(my_rows: Callable[[int], list[int]]) -> Checked:
    """`my_rows(rows)` gives the rows of the global batch that the calling rank reads."""
    return checked(
        lambda: _check_my_rows(my_rows), "fill in my_rows(rows), which every rank calls to learn which rows it reads."
    )


def _check_my_rows(my_rows: Callable) -> str:
    for ranks, rows in ((2, 8), (3, 12)):  # three ranks are not in the notebook: nothing may be made for two
        by_rank = launch(_rows_of_this_rank, my_rows, rows, world_size=ranks, device="cpu", timeout=SECONDS).by_rank
        _check_shares(by_rank, ranks, rows)
    return "every row is read by exactly one rank, with two ranks and with three."


def _rows_of_this_rank(my_rows: Callable, rows: int) -> list[int]:
    share = attempt(my_rows, rows)
    if not isinstance(share, list | tuple | range):
        raise Wrong(f"my_rows returned {share!r}: expected a list of row numbers.")
    return [int(row) for row in share]


def _check_shares(by_rank: list[list[int]], ranks: int, rows: int) -> None:
    where = f"with {ranks} ranks and {rows} rows"
    if ranks > 1 and by_rank[0] and all(share == by_rank[0] for share in by_rank):
        raise Wrong(f"{where}, every rank reads the same rows, {by_rank[0]}: ask torch.distributed for the rank.")
    counts = Counter(row for share in by_rank for row in share)
    if outside := sorted(row for row in counts if not 0 <= row < rows):
        raise Wrong(f"{where}, there is no row {outside[0]}: rows count from 0 to {rows - 1}.")
    if twice := sorted(row for row, count in counts.items() if count > 1):
        raise Wrong(f"{where}, row {twice[0]} is read {counts[twice[0]]} times: it would weigh more than the others.")
    if missing := [row for row in range(rows) if row not in counts]:
        raise Wrong(f"{where}, nobody reads row {missing[0]}: what it could teach is lost.")
    sizes = [len(share) for share in by_rank]
    if len(set(sizes)) > 1:
        raise Wrong(
            f"{where}, the ranks read {', '.join(map(str, sizes))} rows: equal shares, or some wait for others."
        )


def check_global_batch(global_batch: Any) -> Checked:
    """A global batch of at least LEAST_BATCH rows for three data ranks with two micro-batches each."""
    return checked(
        lambda: _check_global_batch(global_batch),
        f"choose a global batch of {LEAST_BATCH} rows or more that 3 data ranks can share in 2 micro-batches each.",
    )


def _check_global_batch(global_batch: Any) -> str:
    if global_batch is None or global_batch is ...:
        raise NotAttempted
    try:
        recipe = Recipe(strategy="ddp=3", gradient_accumulation=2, global_batch=global_batch)
    except HfscaleError as refusal:
        raise Wrong(str(refusal)) from None
    if global_batch < LEAST_BATCH:
        raise Wrong(f"{global_batch} rows can be shared, and at least {LEAST_BATCH} were asked for.")
    read = launch(_rows_in_one_step, recipe, world_size=3, device="cpu", timeout=SECONDS).by_rank
    if sorted(row for share in read for row in share) != list(range(global_batch)):
        raise Wrong(f"the ranks read {read}, which is not every row of {global_batch} once.")
    each = recipe.per_device_batch
    return f"3 ranks x 2 micro-batches x {each} rows = {global_batch} rows in one optimizer step, each read once."


def _rows_in_one_step(recipe: Recipe) -> list[int]:
    """The rows that this rank reads for one optimizer step, its micro-batches one after the other."""
    import torch.distributed as dist

    from hfscale.data.batching import GlobalBatches

    ranks = dist.get_world_size()
    batches = GlobalBatches(recipe.global_batch, recipe.per_device_batch, ranks, dist.get_rank())
    return [row for micro_batch in batches for row in micro_batch]
