"""Evidence that a strategy really happened: a model that stays whole on every rank agrees perfectly with one device."""

from __future__ import annotations

from dataclasses import dataclass

from hfscale.models.sharding import parameter_specs, planned_bytes
from hfscale.recipe import Recipe
from hfscale.strategy import Strategy

# What has to travel on each axis of a mesh, if the strategy is real. (Plain DDP is held to the exact number of bytes.)
EXPECTED_COLLECTIVES = {
    "ddp": ["all-reduce"],
    "fsdp": ["all-gather", "reduce-scatter"],
    "tp": ["all-reduce"],
    "ep": ["all-to-all"],
}


@dataclass(frozen=True)
class Evidence:
    """One observation: what was looked at, what a real run shows, what this one showed, the word for its absence."""

    what: str
    expected: str
    seen: str
    ok: bool
    failure: str


def collect_evidence(recipe: Recipe, by_rank: list[dict]) -> list[Evidence]:
    """Processes, parameter bytes and collectives of a finished run, held against what its strategy implies."""
    strategy = recipe.parsed_strategy
    return [_processes(strategy, by_rank), _parameter_bytes(recipe, by_rank), *_collectives(recipe, by_rank)]


def _processes(strategy: Strategy, by_rank: list[dict]) -> Evidence:
    pids = {rank["pid"] for rank in by_rank}
    sizes = {rank["world_size"] for rank in by_rank}
    ok = len(pids) == strategy.world_size and sizes == {strategy.world_size}
    seen = f"{len(pids)} processes that see a world of {', '.join(map(str, sorted(sizes)))}"
    return Evidence("processes", f"{strategy.world_size} in one world", seen, ok, "not distributed")


def _parameter_bytes(recipe: Recipe, by_rank: list[dict]) -> Evidence:
    specs = parameter_specs(recipe.model)
    planned = [planned_bytes(specs, recipe.parsed_strategy, rank) for rank in range(len(by_rank))]
    held = [rank["parameter_bytes"] for rank in by_rank]
    whole = planned_bytes(specs, Strategy(), 0)
    failure = "not sharded" if held == [whole] * len(held) else "not sharded as planned"
    return Evidence("parameter bytes per rank", _list(planned), _list(held), held == planned, failure)


def _collectives(recipe: Recipe, by_rank: list[dict]) -> list[Evidence]:
    strategy, steps = recipe.parsed_strategy, by_rank[0]["traffic"]["steps"]
    if strategy.ddp > 1 and not strategy.is_sharded:
        expected, seen = by_rank[0]["gradient_bytes"] * steps, _least_moved(by_rank, "ddp", "all-reduce")
        if recipe.as_training_arguments()["ddp_find_unused_parameters"]:
            # Then DDP also reduces a mark of 4 bytes for each parameter tensor that is trained.
            expected += 4 * by_rank[0]["trained_tensors"] * steps
        what = f"bytes all-reduced in {steps} steps"
        return [
            Evidence(what, f"{expected:,} (the gradients)", f"{seen:,}", seen == expected, "gradients not averaged")
        ]
    rows = []
    for axis, collectives in EXPECTED_COLLECTIVES.items():
        if getattr(strategy, axis) > 1:
            for collective in collectives:
                seen = _least_moved(by_rank, axis, collective)
                what = f"{collective} bytes on axis {axis}"
                rows.append(Evidence(what, "more than 0", f"{seen:,}", seen > 0, f"nothing communicated on {axis}"))
    return rows


def _least_moved(by_rank: list[dict], axis: str, collective: str) -> int:
    """Bytes on the rank that moved least: one that stays away is enough to make a strategy unreal."""
    wanted = (axis, collective)
    return min(
        sum(row["bytes"] for row in rank["traffic"]["rows"] if (row["axis"], row["collective"]) == wanted)
        for rank in by_rank
    )


def _list(values: list[int]) -> str:
    distinct = sorted(set(values))
    return f"{distinct[0]:,}" if len(distinct) == 1 else ", ".join(f"{value:,}" for value in values)
