"""The pictures: their rows are what they show, and they show themselves without pyplot."""

import io

import pytest
from PIL import Image

from hfscale import HfscaleError, Recipe
from hfscale.display.plots import LINES, _apart, plot_losses, plot_steps, plot_throughput


class FakeRun:
    """What the plots read of a finished run."""

    def __init__(self, strategy, losses, seconds, tokens):
        self.recipe, self.losses = Recipe(strategy=strategy), losses
        self.result = {
            "by_rank": [
                {"data_rank": rank, "step_seconds": seconds, "tokens": tokens, "traffic": {"steps": 1}}
                for rank in range(self.recipe.parsed_strategy.world_size)
            ]
        }


SINGLE = FakeRun("single", [4.0, 3.0, 2.5], [9.0, 2.0, 2.0], [100, 100, 100])
DOUBLE = FakeRun("ddp=2", [4.0, 3.0, 2.5], [9.0, 1.0, 1.0], [50, 75, 75])


def test_losses_of_runs_are_labelled_with_their_strategy():
    picture, rows = plot_losses([SINGLE, DOUBLE])
    assert len(rows) == 6
    assert rows[0] == {"run": "single", "step": 1, "loss": 4.0}
    assert rows[-1] == {"run": "ddp=2", "step": 3, "loss": 2.5}
    assert repr(picture) == "Picture: the training loss of each step, under single and ddp=2"
    lines = picture.axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == [[4.0, 3.0, 2.5]] * 2
    assert {text.get_text() for text in picture.axes[0].texts} == {"single", "ddp=2"}


def test_plain_lists_can_stand_beside_runs():
    _, rows = plot_losses({"by hand": [4.0, 3.0], "Trainer": DOUBLE})
    assert [row["run"] for row in rows] == ["by hand"] * 2 + ["Trainer"] * 3


def test_equal_lines_stay_visible():
    """Not by colour alone: other width, style and marker, the widest below."""
    picture, _ = plot_losses([SINGLE, DOUBLE])
    first, second = picture.axes[0].lines
    assert first.get_linewidth() > 2 * second.get_linewidth()
    assert first.get_linestyle() != second.get_linestyle() and first.get_marker() != second.get_marker()
    assert len({line[0] for line in LINES}) == len({line[2] for line in LINES}) == len(LINES)


def test_labels_of_lines_that_end_together_do_not_overlap():
    picture, _ = plot_losses([SINGLE, DOUBLE])
    picture.draw_without_rendering()
    boxes = [text.get_window_extent() for text in picture.axes[0].texts]
    assert not boxes[0].overlaps(boxes[1])


def test_apart_keeps_order_and_centre():
    assert _apart([1.0, 1.0, 1.0], 0.5) == pytest.approx([0.5, 1.0, 1.5])
    assert _apart([0.0, 2.0], 0.5) == [0.0, 2.0]


def test_nothing_to_draw_is_refused():
    for series in ({}, {"a": []}):
        with pytest.raises(HfscaleError, match="nothing to draw"):
            plot_steps(series, "loss", "nothing")


def test_throughput_leaves_out_the_counted_steps_and_compares_with_the_first():
    picture, rows = plot_throughput([SINGLE, DOUBLE])
    assert rows == [
        {"run": "single", "ranks": 1, "tokens_per_second": 50.0, "speed_up": 1.0},
        {"run": "ddp=2", "ranks": 2, "tokens_per_second": 150.0, "speed_up": 3.0},
    ]
    bars = picture.axes[0].patches
    assert [bar.get_width() for bar in bars] == [50.0, 50.0, 100.0, 150.0]  # best, measured; best, measured
    assert bars[1].get_hatch() != bars[3].get_hatch()


def test_a_picture_shows_itself_as_png_with_its_summary():
    picture, _ = plot_losses([SINGLE, DOUBLE])
    data, metadata = picture._repr_mimebundle_()
    image = Image.open(io.BytesIO(data["image/png"]))
    assert image.format == "PNG" and image.width > 900 and len(data["image/png"]) < 100_000
    assert data["text/plain"] == f"Picture: {metadata['image/png']['alt']}"
    assert metadata["image/png"]["width"] == pytest.approx(image.width * 96 / 144, abs=1)
