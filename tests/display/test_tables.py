"""Tables: complete, readable at 80 columns, and never a verdict by colour alone."""

import re

from hfscale.checking.comparison import Comparison, Row
from hfscale.checking.parity import Parity
from hfscale.display.tables import comparison_html, comparison_table, comparison_text, html_table, human_bytes, render

ROWS = [
    Row("pocket-llama", "single", 1, "fp32", [4.5367, 4.1858], None, None, 1686.2, [4215296], "reference", "the one"),
    Row(
        "pocket-llama", "fsdp=2,tp=2", 4, "fp32", [4.5367, 4.1858], 5e-7, 3e-6, 1234.5, [1054976] * 4, "agrees", "close"
    ),
    Row(
        "pocket-llama", "ddp=2", 2, "fp32", [4.5, 4.4], 0.25, 1.0, 99.0, [1_110_000, 2_000_000], "differs", "a sum <b>"
    ),
    Row("pocket-llama", "tp=3", 3, "fp32", verdict="refused", reason="use tp=1, 2 or 4"),
]
PARITY = [None, Parity("fsdp=2,tp=2", "single", [], [], gradients=1_053_824)]
COMPARISON = Comparison(ROWS, 12.3, 7, 412_000_000, 2, PARITY)


def test_the_table_fits_80_columns_and_loses_nothing():
    text = comparison_text(COMPARISON, width=80)
    assert max(map(len, text.splitlines()[:12])) <= 80
    assert "…" not in text
    for word in (
        "fsdp=2,tp=2",
        "4.54 → 4.19",
        "5e-07",
        "3e-06",
        "1,234",
        "1.05 MB",
        "✓ agrees",
        "✗ differs",
        "– refused",
    ):
        assert word in text
    assert "ddp=2 differs: a sum <b>" in text
    assert "NOT the same training: pocket-llama under ddp=2" in text


def test_rows_that_have_not_run_are_shown_as_waiting_or_running():
    planned = [("pocket-llama", "single"), ("pocket-llama", "ddp=2"), ("pocket-moe", "ep=2")]
    text = render(comparison_table([ROWS[0], None, None], planned, running=(1, "step 3/8")), 80)
    assert re.search(r"ddp=2 +step 3/8", text)
    assert re.search(r"ep=2 +waiting", text)
    assert text.index("pocket-llama") < text.index("pocket-moe")


def test_html_has_caption_headers_and_escaped_text():
    page = comparison_html(COMPARISON)
    assert page.count("<tr>") == 5
    assert "<caption" in page
    assert page.count('scope="row"') == 4
    assert "a sum &lt;b&gt;" in page
    assert "<b>" not in page
    assert "✓ agrees" in page


def test_html_table_escapes_cells():
    assert "&lt;script&gt;" in html_table(("a",), [["<script>"]], "c")


def test_summary_counts_what_ran():
    agreeing = Comparison(ROWS[:2], 1.0, 5, 412_000_000, 2, PARITY)
    assert agreeing.ok
    assert agreeing.summary == (
        "2 runs, 5 processes, 412 MB moved in 2 counted steps each; "
        "each of 1,053,824 gradient numbers equals one device's within 3e-06."
    )
    assert not COMPARISON.ok
    only_refused = Comparison([ROWS[0], ROWS[3]], 1.0, 1, 0, 2, [])
    assert not only_refused.ok, "nothing was compared, so nothing agrees"
    assert only_refused.summary.endswith("nothing was compared.")


def test_json_has_exactly_the_documented_keys():
    row = COMPARISON.to_dict()["rows"][1]
    assert list(row) == [
        "model",
        "strategy",
        "world_size",
        "precision",
        "losses",
        "max_loss_difference",
        "max_gradient_difference",
        "tokens_per_second",
        "parameter_bytes_per_rank",
        "verdict",
        "reason",
    ]
    assert set(COMPARISON.to_dict()) == {"ok", "seconds", "rows"}


def test_human_bytes():
    assert [human_bytes(n) for n in (0, 999, 1000, 4_215_296, 10**9, 999_999)] == [
        "0 B",
        "999 B",
        "1 kB",
        "4.22 MB",
        "1 GB",
        "1 MB",
    ]
