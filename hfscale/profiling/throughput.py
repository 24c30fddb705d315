"""Throughput of a run in real tokens: padding and filler rows are not work that anybody asked for."""

from __future__ import annotations

from statistics import median


def tokens_per_second(by_rank: list[dict], skip: int) -> float:
    """Median over the steps of (real tokens of all data ranks / seconds of the slowest rank).

    by_rank: the results of `train_recipe`. skip: first steps to leave out (warming up, counting traffic), if any
    remain.
    """
    steps = len(by_rank[0]["step_seconds"])
    readers = {rank["data_rank"]: rank for rank in by_rank}.values()  # ranks of one tp group read the same tokens
    rates = [
        sum(rank["tokens"][step] for rank in readers) / max(rank["step_seconds"][step] for rank in by_rank)
        for step in range(min(skip, steps - 1), steps)
    ]
    return median(rates)
