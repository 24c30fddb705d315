"""Draw docs/picture.png, the picture of the README: python docs/draw_picture.py

On the left one recipe, in the middle what each rank stores and reads under every strategy, on the right one table.
Only shades of grey: dark is what a rank stores or reads, white is what it does not.
"""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

PIXELS = (1200, 720)
DPI = 100
HELD, EMPTY, INK, SOFT, PAPER = "#333333", "white", "#222222", "#777777", "#f3f3f3"
CELLS = 4  # a matrix is drawn as 4 x 4 cells, a global batch as 4 rows, a layer's experts as 4 squares
ALL, FIRST, LAST = (0, 1, 2, 3), (0, 1), (2, 3)


@dataclass
class Rank:
    """What one rank stores of a matrix and of a layer's experts (None: dense model), and which batch rows it reads."""

    rows: tuple[int, ...] = ALL
    columns: tuple[int, ...] = ALL
    batch: tuple[int, ...] = ALL
    experts: tuple[int, ...] | None = None


STRATEGIES = {
    "single": ("one device:", "the reference", [Rank()]),
    "ddp=2": ("whole copies,", "half the batch each", [Rank(batch=FIRST), Rank(batch=LAST)]),
    "fsdp=2": (
        "half of every parameter,",
        "half the batch each",
        [Rank(rows=FIRST, batch=FIRST), Rank(rows=LAST, batch=LAST)],
    ),
    "tp=2": ("half of each large matrix,", "both read the same batch", [Rank(columns=FIRST), Rank(columns=LAST)]),
    "ep=2": (
        "as fsdp=2, and half of",
        "the experts each",
        [Rank(rows=FIRST, batch=FIRST, experts=FIRST), Rank(rows=LAST, batch=LAST, experts=LAST)],
    ),
}


def main() -> None:
    figure = Figure(figsize=(PIXELS[0] / DPI, PIXELS[1] / DPI), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, PIXELS[0]), ylim=(PIXELS[1], 0))  # in pixels, y downwards
    axes.axis("off")
    _headings(axes)
    _recipe(axes)
    for number, (name, (first, second, ranks)) in enumerate(STRATEGIES.items()):
        y = 62 + number * 122
        _strategy(axes, y, name, first, second, ranks)
        _arrow(axes, (192, 360), (228, y + 53))
        right = 486 + len(ranks) * 222 - 14
        axes.plot([right + 4, 922], [y + 53, y + 53], color=SOFT, linewidth=1.2, linestyle=(0, (1, 2)))
        _arrow(axes, (922, y + 53), (964, 360))
    _table(axes)
    _key(axes)
    figure.savefig(Path(__file__).with_name("picture.png"), metadata={"Software": None})


def _headings(axes: Axes) -> None:
    for x, text in ((100, "one recipe"), (577, "the same job, in real processes"), (1078, "one table")):
        axes.text(x, 38, text, ha="center", fontsize=16, weight="bold", color=INK)


def _recipe(axes: Axes) -> None:
    _card(axes, 16, 230, 172, 260)
    lines = ["model", "data", "global batch", "sequence length", "steps", "learning rate", "precision", "seed"]
    for number, line in enumerate(lines):
        axes.text(102, 264 + number * 28, line, ha="center", va="center", fontsize=12.5, color=INK)


def _strategy(axes: Axes, y: float, name: str, first: str, second: str, ranks: list[Rank]) -> None:
    axes.text(240, y + 28, name, fontsize=15, weight="bold", family="monospace", color=INK)
    axes.text(240, y + 56, first, fontsize=11.5, color=INK)
    axes.text(240, y + 77, second, fontsize=11.5, color=INK)
    for number, rank in enumerate(ranks):
        _rank(axes, 486 + number * 222, y, f"rank {number}", rank)


def _rank(axes: Axes, x: float, y: float, name: str, rank: Rank) -> None:
    _card(axes, x, y, 208, 106)
    axes.text(x + 10, y + 20, name, fontsize=11, weight="bold", color=INK)
    top, size = y + 32, 12
    for row in range(CELLS):
        for column in range(CELLS):
            _cell(axes, x + 12 + column * size, top + row * size, row in rank.rows and column in rank.columns, size)
        _cell(axes, x + 148, top + row * size, row in rank.batch, 46, size)
    _label(axes, x + 36, y, "weights")
    _label(axes, x + 171, y, "batch")
    if rank.experts is not None:
        for expert in range(CELLS):
            _cell(axes, x + 81 + expert % 2 * 25, top + expert // 2 * 25, expert in rank.experts, 21, 22)
        _label(axes, x + 104, y, "experts")


def _label(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y + 96, text, ha="center", fontsize=10.5, color=INK)


def _table(axes: Axes) -> None:
    _card(axes, 968, 230, 218, 260)
    axes.text(984, 262, "strategy", fontsize=11, weight="bold", color=INK)
    axes.text(1172, 262, "verdict", fontsize=11, weight="bold", ha="right", color=INK)
    for number, name in enumerate(STRATEGIES):
        y = 298 + number * 30
        axes.plot([984, 1172], [y - 22, y - 22], color=SOFT, linewidth=0.8)
        axes.text(984, y, name, fontsize=12.5, family="monospace", color=INK)
        axes.text(1172, y, "reference" if name == "single" else "agrees?", fontsize=11.5, ha="right", color=INK)
    axes.plot([984, 1172], [426, 426], color=SOFT, linewidth=0.8)
    axes.text(1077, 451, "losses, gradients, speed,", fontsize=11, ha="center", color=INK)
    axes.text(1077, 472, "bytes per rank", fontsize=11, ha="center", color=INK)


def _key(axes: Axes) -> None:
    _cell(axes, 240, 683, True, 16)
    axes.text(264, 696, "this rank stores it, or reads it", fontsize=11.5, color=INK)
    _cell(axes, 510, 683, False, 16)
    axes.text(534, 696, "it does not", fontsize=11.5, color=INK)
    axes.text(650, 696, "weights: one large matrix; batch: rows of the global batch", fontsize=11.5, color=INK)


def _card(axes: Axes, x: float, y: float, width: float, height: float) -> None:
    style = "round,pad=0,rounding_size=8"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc=PAPER, ec=INK, linewidth=1.2))


def _cell(axes: Axes, x: float, y: float, held: bool, width: float, height: float | None = None) -> None:
    face = HELD if held else EMPTY
    axes.add_patch(Rectangle((x, y), width, height or width, fc=face, ec="#9a9a9a", linewidth=0.8))


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 12, "linewidth": 1.2}
    axes.add_patch(FancyArrowPatch(start, end, color=SOFT, shrinkA=0, **style))


if __name__ == "__main__":
    main()
