"""The picture of a layout: which rows of the batch each rank reads, and which part of the parameters it holds."""

from __future__ import annotations

import math

import matplotlib.style
from matplotlib.patches import Rectangle

from hfscale.display.plots import HATCHES, STYLE, Picture
from hfscale.display.tables import human_bytes
from hfscale.models.sharding import ParameterSpec, parameter_specs, planned_bytes, planned_shape
from hfscale.strategy import Strategy

# Kind of parameter -> parts of a name that show it; the first that fits counts.
KINDS = {
    "norms": ("norm", "ln_"),
    "experts": ("experts",),
    "router": ("mlp.gate.weight", "router"),
    "embedding": ("embed", "wte", "wpe"),
    "attention": ("attn", "attention"),
    "MLP": ("mlp", "ffn", "feed_forward"),
    "head": ("lm_head",),
}
SHOWN = ("embedding", "attention", "MLP", "experts", "router", "norms", "head", "other")
MOST_CELLS = 32


def plot_layout(
    strategy: str | Strategy, model: str = "pocket-llama", global_batch: int = 16
) -> tuple[Picture, list[dict]]:
    """One panel for each rank: the rows of the batch that it reads, and its tile of each kind of parameter.

    In a tile picture, fsdp cuts downwards and tp cuts across; what a rank holds is filled. Returns the picture and the
    rows {"rank", "reads" (row numbers), "parameter_bytes", "holds" (kind → share from 0 to 1)}. It is a plan: worked
    out from the model's sharding plans, not measured.
    """
    strategy = Strategy.parse(strategy)
    specs = parameter_specs(model)
    rows = [_rank(strategy, specs, rank, global_batch) for rank in range(strategy.world_size)]
    columns = strategy.tp if strategy.tp > 1 else min(2, strategy.world_size)
    lines = math.ceil(strategy.world_size / columns)
    summary = f"what each of the {len(rows)} ranks of {strategy} reads and holds of {model}"
    picture = Picture(summary, height=0.2 + 1.7 * lines)
    picture.get_layout_engine().set(wspace=0.08, hspace=0.08)
    with matplotlib.style.context(STYLE):
        panels = list(picture.subplots(lines, columns, squeeze=False).flat)
        for panel in panels:
            panel.set_axis_off()
        for panel, row in zip(panels, rows, strict=False):
            _draw_rank(panel, strategy, specs, row, global_batch)
    return picture, rows


def _rank(strategy: Strategy, specs: list[ParameterSpec], rank: int, global_batch: int) -> dict:
    share, place = global_batch / strategy.data_ranks, strategy.data_rank(rank)
    holds = {}
    for kind, group in _groups(specs).items():
        held = sum(math.prod(planned_shape(spec, strategy, rank)) for spec in group)
        holds[kind] = held / sum(spec.numel for spec in group)
    return {
        "rank": rank,
        "reads": list(range(round(place * share), round((place + 1) * share))),
        "parameter_bytes": planned_bytes(specs, strategy, rank),
        "holds": holds,
    }


def _draw_rank(axes, strategy: Strategy, specs: list[ParameterSpec], row: dict, global_batch: int) -> None:
    groups = _groups(specs)
    whole = planned_bytes(specs, Strategy(), 0)
    axes.set(xlim=(-0.05, 10.05), ylim=(0, 5.2))
    axes.text(0, 4.75, f"rank {row['rank']}", weight="bold", va="center")
    held = f"holds {human_bytes(row['parameter_bytes'])} of {human_bytes(whole)}"
    axes.text(10, 4.75, held, ha="right", va="center", fontsize="small")
    _draw_batch(axes, row["reads"], global_batch)
    pitch = 10 / len(groups)
    for i, (kind, group) in enumerate(groups.items()):
        corner, width, height = (i * pitch, 0.75), pitch * 0.82, 1.75
        axes.add_patch(Rectangle(corner, width, height, facecolor="none", edgecolor="0.45"))
        left, bottom, across, down = _tile(strategy, group[0], row["rank"])
        tile = (corner[0] + left * width, corner[1] + bottom * height), across * width, down * height
        look = {"facecolor": f"C{i}", "hatch": HATCHES[i % len(HATCHES)], "edgecolor": "white", "linewidth": 0}
        axes.add_patch(Rectangle(*tile, **look))
        axes.text(corner[0] + width / 2, 0.35, kind, ha="center", va="center", fontsize="small")


def _draw_batch(axes, reads: list[int], global_batch: int) -> None:
    """The rows of the global batch as a strip of cells; a large batch as one bar."""
    cells = min(global_batch, MOST_CELLS)
    size = 10 / cells
    for cell in range(cells):
        read = bool(reads) and reads[0] <= cell * global_batch / cells <= reads[-1]
        colour = "0.35" if read else "none"
        axes.add_patch(Rectangle((cell * size, 3.5), size * 0.82, 0.55, facecolor=colour, edgecolor="0.45"))
    text = f"reads rows {reads[0]} to {reads[-1]} of {global_batch}" if reads else "reads nothing"
    axes.text(0, 3.05, text, va="center", fontsize="small")


def _tile(strategy: Strategy, spec: ParameterSpec, rank: int) -> tuple[float, float, float, float]:
    """The rank's part of a parameter as (left, bottom, width, height) in a square of size 1; fsdp cuts from the top."""
    if strategy.ep > 1 and spec.is_expert:
        down, place = strategy.fsdp * strategy.tp, rank % (strategy.fsdp * strategy.tp)
        across, column = 1, 0
    else:
        down, place = strategy.fsdp, rank // strategy.tp % strategy.fsdp
        is_cut = planned_shape(spec, Strategy(tp=strategy.tp), 0) != spec.shape
        across, column = (strategy.tp, rank % strategy.tp) if is_cut else (1, 0)
    return column / across, 1 - (place + 1) / down, 1 / across, 1 / down


def _groups(specs: list[ParameterSpec]) -> dict[str, list[ParameterSpec]]:
    groups: dict[str, list[ParameterSpec]] = {}
    for spec in specs:
        kind = next((kind for kind, signs in KINDS.items() if any(sign in spec.name for sign in signs)), "other")
        groups.setdefault(kind, []).append(spec)
    return {kind: groups[kind] for kind in SHOWN if kind in groups}
