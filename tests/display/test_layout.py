"""The picture of a layout, held against what the model's plans say."""

import pytest

from hfscale import HfscaleError
from hfscale.display.layout import plot_layout
from hfscale.models.sharding import parameter_specs, planned_bytes
from hfscale.strategy import Strategy

WHOLE = planned_bytes(parameter_specs("pocket-llama"), Strategy(), 0)


def test_under_ddp_every_rank_holds_all_and_reads_its_share():
    _, rows = plot_layout("ddp=2", "pocket-llama", global_batch=6)
    assert [row["reads"] for row in rows] == [[0, 1, 2], [3, 4, 5]]
    assert all(set(row["holds"].values()) == {1.0} and row["parameter_bytes"] == WHOLE for row in rows)


def test_a_mesh_of_fsdp_and_tp():
    picture, rows = plot_layout("fsdp=2,tp=2", "pocket-llama", global_batch=16)
    assert [len(row["reads"]) for row in rows] == [8] * 4
    assert rows[0]["reads"] == rows[1]["reads"] != rows[2]["reads"]
    assert rows[0]["holds"] == {"embedding": 0.25, "attention": 0.25, "MLP": 0.25, "norms": 0.5}
    assert sum(row["parameter_bytes"] for row in rows) > WHOLE  # norms lie on both tp ranks
    assert _tiles(picture, kinds=4) == [
        [(0.0, 0.5, 0.5, 0.5)] * 3 + [(0.0, 0.5, 1.0, 0.5)],  # rank 0: top left; norms the upper half
        [(0.5, 0.5, 0.5, 0.5)] * 3 + [(0.0, 0.5, 1.0, 0.5)],
        [(0.0, 0.0, 0.5, 0.5)] * 3 + [(0.0, 0.0, 1.0, 0.5)],
        [(0.5, 0.0, 0.5, 0.5)] * 3 + [(0.0, 0.0, 1.0, 0.5)],
    ]


@pytest.mark.parametrize("strategy", ["ddp=2", "fsdp=2", "tp=2", "ep=2", "tp=2,ep=2", "fsdp=2,tp=2", "tp=4"])
def test_the_filled_part_is_the_share_that_a_rank_holds(strategy):
    picture, rows = plot_layout(strategy, "pocket-moe")
    for row, tiles in zip(rows, _tiles(picture, kinds=len(rows[0]["holds"])), strict=True):
        assert [width * height for _, _, width, height in tiles] == pytest.approx(list(row["holds"].values()))


def test_ranks_hold_different_experts():
    picture, _ = plot_layout("tp=2,ep=2", "pocket-moe")
    experts = [tiles[2] for tiles in _tiles(picture, kinds=5)]
    assert experts == [(0.0, 0.5, 1.0, 0.5), (0.0, 0.0, 1.0, 0.5)]


def test_a_large_batch_and_one_rank():
    picture, rows = plot_layout("single", "pocket-llama", global_batch=512)
    assert len(rows) == 1 and len(rows[0]["reads"]) == 512
    assert len(picture.axes[0].patches) < 50
    assert "reads rows 0 to 511 of 512" in {text.get_text() for text in picture.axes[0].texts}


def test_an_unknown_strategy_is_refused():
    with pytest.raises(HfscaleError, match="names the axis"):
        plot_layout("dpp=2")


def _tiles(picture, kinds: int) -> list[list[tuple]]:
    """For each rank, (left, bottom, width, height) of the filled part of each kind, in a square of size 1."""
    found = []
    for panel in picture.axes[: sum(bool(axes.patches) for axes in picture.axes)]:
        patches = panel.patches[-2 * kinds :]
        tiles = []
        for whole, part in zip(patches[::2], patches[1::2], strict=True):
            (x, y), width, height = whole.get_xy(), whole.get_width(), whole.get_height()
            left, bottom = part.get_xy()
            tile = (left - x) / width, (bottom - y) / height, part.get_width() / width, part.get_height() / height
            tiles.append(tuple(round(number, 6) for number in tile))
        found.append(tiles)
    return found
