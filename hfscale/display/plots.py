"""Pictures for notebooks: losses, speed, and which rank holds what.

Each function returns a figure and the rows that it shows, so that a notebook can print facts about them. Nothing is
told by colour alone: lines differ in style, width and marker, bars in their hatch, and each is labelled where it is.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.style
from matplotlib.figure import Figure

from hfscale.errors import HfscaleError
from hfscale.profiling.throughput import tokens_per_second

if TYPE_CHECKING:
    from hfscale.launching.run import Run

STYLE = "petroff10"  # ten colours that people with colour-blindness tell apart
LINES = [("-", 7, "o"), ("--", 2, "s"), (":", 3, "^"), ("-.", 1.5, "D")]  # wide ones first: equal curves stay visible
HATCHES = ["", "//", "..", "xx"]
WIDTH = 7.2  # inches: the text width of a notebook
DPI = 144

Series = Mapping[str, Sequence[float]]


class Picture(Figure):
    """A figure that a notebook shows without pyplot, with one sentence of text for those who do not see it.

    The sentence must not depend on the machine: notebook tests compare it.
    """

    def __init__(self, summary: str, height: float):
        with matplotlib.style.context(STYLE):
            super().__init__(figsize=(WIDTH, height), layout="constrained")
        self.summary = summary

    def __repr__(self) -> str:
        return f"Picture: {self.summary}"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict, dict]:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=DPI, metadata={"Software": None})
        width, height = (round(inches * 96) for inches in self.get_size_inches())
        shown = {"alt": self.summary, "width": width, "height": height}
        return {"image/png": image.getvalue(), "text/plain": repr(self)}, {"image/png": shown}


def plot_losses(runs: Sequence[Run] | Mapping[str, Run | Sequence[float]]) -> tuple[Picture, list[dict]]:
    """Loss against step, a line for each run; rows {"run", "step", "loss"}.

    runs: runs, labelled with their strategy; or label → run or list of losses.
    """
    if not isinstance(runs, Mapping):
        runs = {run.recipe.strategy: run for run in runs}
    losses = {label: getattr(run, "losses", run) for label, run in runs.items()}
    return plot_steps(
        losses, "loss", f"the training loss of each step, under {_listed(list(losses))}", "nats per token"
    )


def plot_steps(series: Series, quantity: str, summary: str, unit: str = "") -> tuple[Picture, list[dict]]:
    """One number for each step, a line for each of `series`; rows {"run", "step", quantity}."""
    if not series or not all(series.values()):
        raise HfscaleError(
            "There is nothing to draw: expected at least one series, and a number for each of its steps."
        )
    picture = Picture(summary, height=3.2)
    with matplotlib.style.context(STYLE):
        axes = picture.subplots()
        for i, values in enumerate(series.values()):
            style, width, marker = LINES[i % len(LINES)]
            steps = range(1, len(values) + 1)
            look = {"linestyle": style, "linewidth": width, "marker": marker, "markersize": width + 3}
            axes.plot(steps, values, **look, markerfacecolor="white", alpha=0.45 if i == 0 else 1.0)
        axes.set(xlabel="step", ylabel=f"{quantity} ({unit})" if unit else quantity)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
        _label_line_ends(axes, series)
    return picture, [
        {"run": label, "step": step, quantity: value}
        for label, values in series.items()
        for step, value in enumerate(values, start=1)
    ]


def plot_throughput(runs: Sequence[Run]) -> tuple[Picture, list[dict]]:
    """Real tokens per second of each run, and what as many devices could do at best; the first run is the yardstick.

    Rows {"run", "ranks", "tokens_per_second", "speed_up"}. Give all runs the same number of threads per rank.
    """
    rows = [_speed(run) for run in runs]
    for row in rows:
        row["speed_up"] = row["tokens_per_second"] / rows[0]["tokens_per_second"]
    names = _listed([row["run"] for row in rows])
    picture = Picture(
        f"tokens per second under {names}, each beside what its ranks could do at best", 0.9 + len(rows) * 0.6
    )
    with matplotlib.style.context(STYLE):
        axes = picture.subplots()
        for i, row in enumerate(rows):
            best = row["ranks"] * rows[0]["tokens_per_second"]
            axes.barh(i, best, height=0.62, facecolor="none", edgecolor="0.5", linestyle="--")
            axes.barh(i, row["tokens_per_second"], height=0.62, hatch=HATCHES[i % len(HATCHES)], edgecolor="white")
            text = f" {row['tokens_per_second']:,.0f}" + (f", {row['speed_up']:.2f} times" if i else "")
            axes.text(max(best, row["tokens_per_second"]), i, text, va="center")
        axes.set_yticks(range(len(rows)), [row["run"] for row in rows])
        axes.invert_yaxis()
        axes.margins(x=0.3)
        axes.set_xlim(left=0)
        axes.set_xlabel("real tokens per second; dashed: the first run's speed times the number of ranks")
        axes.spines[["top", "right"]].set_visible(False)
    return picture, rows


def _speed(run: Run) -> dict:
    by_rank = run.result["by_rank"]
    rate = tokens_per_second(by_rank, skip=by_rank[0]["traffic"]["steps"])  # the counted steps are slower
    return {"run": run.recipe.strategy, "ranks": len(by_rank), "tokens_per_second": rate}


def _label_line_ends(axes, series: Series) -> None:
    """A label beside the last point of each line, moved apart where lines end at the same place."""
    low, high = axes.get_ylim()
    gap = 0.085 * (high - low)
    ends = sorted((values[-1], label) for label, values in series.items())
    longest = max(len(values) for values in series.values())
    for (_, label), height in zip(ends, _apart([end for end, _ in ends], gap), strict=True):
        axes.annotate(label, (longest, height), xytext=(14, 0), textcoords="offset points", va="center")


def _apart(heights: list[float], gap: float) -> list[float]:
    """Ascending heights, moved as little as needed for at least `gap` between neighbours."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    shift = (sum(placed) - sum(heights)) / max(len(heights), 1)
    return [height - shift for height in placed]


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
