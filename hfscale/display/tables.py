"""Tables for terminal and notebook. A verdict is always a word, never a colour alone."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from hfscale.checking.comparison import Comparison, Row
    from hfscale.checking.parity import Parity
    from hfscale.checkup import Doctor

STYLES = {"agrees": "green", "reference": "bold", "differs": "bold red", "refused": "yellow", "waiting": "dim"}
SIGNS = {"agrees": "✓", "differs": "✗", "refused": "–"}
# Narrow enough for a terminal of 80 columns.
COMPARISON_COLUMNS = ("strategy", "ranks", "loss", "Δ loss", "Δ grad", "tok/s", "params", "verdict")
DOCTOR_COLUMNS = ("", "what", "found", "what to do")
COMPARISON_CAPTION = (
    "loss: first → last step. Δ: largest difference to one device, over all steps and all parameters. "
    "tok/s: real tokens, no padding. params: bytes of parameters on each rank."
)


def comparison_table(
    rows: Sequence[Row | None], planned: Sequence[tuple[str, str]], running: tuple[int, str] | None = None
) -> Table:
    """The rows so far, one section per model; planned rows that have not run yet are waiting, and one may be running.

    running: (index of the planned row, what to say about it).
    """
    look = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    table = Table(caption=COMPARISON_CAPTION, caption_justify="left", **look)
    for column in COMPARISON_COLUMNS:
        text = column in ("strategy", "verdict")
        look = {"min_width": 12, "overflow": "fold"} if column == "strategy" else {"no_wrap": True}
        table.add_column(column, justify="left" if text else "right", **look)
    for index, ((model, strategy), row) in enumerate(zip(planned, rows, strict=True)):
        if index == 0 or planned[index - 1][0] != model:
            table.add_section()
            table.add_row(f"[bold]{model}[/bold]")
        if row is not None:
            verdict = f"[{STYLES[row.verdict]}]{verdict_words(row)}[/]"
            table.add_row(*comparison_cells(row)[:-1], verdict)
        else:
            state = running[1] if running and running[0] == index else "[dim]waiting[/dim]"
            table.add_row(strategy, *[""] * (len(COMPARISON_COLUMNS) - 2), state)
    return table


def comparison_cells(row: Row) -> list[str]:
    """One row as the texts of COMPARISON_COLUMNS."""
    return [
        row.strategy,
        str(row.world_size),
        f"{row.losses[0]:.2f} → {row.losses[-1]:.2f}" if row.losses else "",
        _difference(row.max_loss_difference),
        _difference(row.max_gradient_difference),
        f"{row.tokens_per_second:,.0f}" if row.tokens_per_second else "",
        _range_of_bytes(row.parameter_bytes_per_rank),
        verdict_words(row),
    ]


def verdict_words(row: Row) -> str:
    return f"{SIGNS.get(row.verdict, '')} {row.verdict}".strip()


def comparison_reasons(rows: Sequence[Row | None]) -> list[str]:
    """A line for every row whose verdict needs an explanation."""
    shown = [row for row in rows if row is not None and row.verdict in ("differs", "refused")]
    return [f"{row.model} under {row.strategy} {row.verdict}: {row.reason}" for row in shown]


def comparison_text(comparison: Comparison, width: int = 110) -> str:
    """The finished comparison for a plain terminal, with reasons and summary."""
    table = comparison_table(comparison.rows, [(row.model, row.strategy) for row in comparison.rows])
    lines = [render(table, width), *comparison_reasons(comparison.rows), comparison.summary]
    return "\n".join(lines)


def comparison_html(comparison: Comparison) -> str:
    """The finished comparison as an HTML table with a caption and headers for screen readers."""
    columns = ("model", *COMPARISON_COLUMNS)
    rows = [[row.model, *comparison_cells(row)] for row in comparison.rows]
    reasons = "".join(f"<p>{html.escape(reason)}</p>" for reason in comparison_reasons(comparison.rows))
    return html_table(columns, rows, COMPARISON_CAPTION) + reasons + f"<p>{html.escape(comparison.summary)}</p>"


def parity_html(parity: Parity) -> str:
    """Verdict, compared quantities and evidence of one strategy."""
    quantities = [
        [row.name, f"{row.worst:.1e}", f"{row.bound:.0e}", row.where, "ok" if row.ok else "exceeds its bound"]
        for row in parity.rows
    ]
    evidence = [[item.what, item.expected, item.seen, "ok" if item.ok else item.failure] for item in parity.evidence]
    title = f"{parity.strategy} against {parity.reference}: {parity.verdict}"
    return (
        f"<p><strong>{html.escape(title)}</strong></p>"
        + html_table(("quantity", "worst difference", "bound", "where", "result"), quantities, "Same training?")
        + html_table(("evidence", "expected", "seen", "result"), evidence, "Did the strategy happen?")
        + (f"<p>Suspect: {html.escape(parity.suspect)}</p>" if parity.suspect else "")
    )


def doctor_table(doctor: Doctor) -> Table:
    """What the doctor saw; a line that is not ok says what to do."""
    columns = DOCTOR_COLUMNS if any(line.advice for line in doctor.lines) else DOCTOR_COLUMNS[:-1]
    table = Table(padding=(0, 1))
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in doctor.lines:
        sign = {True: "[green]ok[/green]", False: "[yellow]look[/yellow]", None: ""}[line.ok]
        table.add_row(*[sign, line.name, line.value, line.advice][: len(columns)])
    return table


def doctor_html(doctor: Doctor) -> str:
    rows = [[{True: "ok", False: "look", None: ""}[x.ok], x.name, x.value, x.advice] for x in doctor.lines]
    return html_table(DOCTOR_COLUMNS, rows, "This machine")


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A plain table: the notebook's own style, a caption, column headers, and the first column as row headers."""
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>"
        + f'<th scope="row" style="text-align:left">{html.escape(first)}</th>'
        + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<table><caption style="text-align:left">{html.escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def human_bytes(count: int) -> str:
    """Bytes in the decimal units that disks and networks use: 999 B, 2.1 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def render(renderable, width: int) -> str:
    """What rich would print, as plain text of at most `width` columns, without colour."""
    text = io.StringIO()
    # In a notebook rich would show an empty output of its own beside the text, if it were not told otherwise.
    console = Console(file=text, width=width, color_system=None, highlight=False, force_jupyter=False)
    console.print(renderable)
    return text.getvalue().rstrip("\n")


def _difference(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}" if value else "0"


def _range_of_bytes(counts: list[int]) -> str:
    if not counts:
        return ""
    low, high = human_bytes(min(counts)), human_bytes(max(counts))
    if low == high:
        return low
    unit = high.split()[1]
    return f"{low.removesuffix(unit).strip()}–{high}" if low.endswith(f" {unit}") else f"{low}–{high}"
