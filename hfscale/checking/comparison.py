"""Comparison: the rows of one recipe under several strategies, and what was counted on the way."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from hfscale.checking.parity import Parity


@dataclass
class Row:
    """One strategy of a comparison. Fields that a refused or failed run never reached are None or empty.

    losses: of each step, in nats. max_loss_difference: to the reference, over all steps. max_gradient_difference:
    over all parameters, relative (see `Parity`). parameter_bytes_per_rank: what each rank holds of the parameters.
    verdict: "reference", "agrees", "differs" or "refused"; reason: one sentence.
    """

    model: str
    strategy: str
    world_size: int
    precision: str
    losses: list[float] = field(default_factory=list)
    max_loss_difference: float | None = None
    max_gradient_difference: float | None = None
    tokens_per_second: float | None = None
    parameter_bytes_per_rank: list[int] = field(default_factory=list)
    verdict: str = ""
    reason: str = ""


@dataclass
class Comparison:
    """The rows of a comparison in order, and what was counted on the way.

    parity: for each row the full verdict behind it, None where nothing was compared.
    """

    rows: list[Row]
    seconds: float
    processes: int
    bytes_moved: int
    counted_steps: int
    parity: list[Parity | None]

    @property
    def gradients(self) -> int:
        """How many gradient numbers were compared, all rows together."""
        return sum(parity.gradients for parity in self.parity if parity)

    @property
    def ok(self) -> bool:
        """Whether every row that ran agrees with its reference, and at least one was compared."""
        verdicts = [row.verdict for row in self.rows]
        return "differs" not in verdicts and "agrees" in verdicts

    @property
    def summary(self) -> str:
        """What was measured, in one sentence."""
        ran = [row for row in self.rows if row.losses]
        counts = f"{count(len(ran), 'run')}, {count(self.processes, 'process', 'processes')}, "
        counts += f"{self.bytes_moved / 1e6:.0f} MB moved in {count(self.counted_steps, 'counted step')} each"
        differing = [f"{row.model} under {row.strategy}" for row in self.rows if row.verdict == "differs"]
        if differing:
            return f"{counts}; NOT the same training: {', '.join(differing)}."
        worst = max(
            (row.max_gradient_difference for row in ran if row.max_gradient_difference is not None), default=None
        )
        if worst is None:
            return f"{counts}; nothing was compared."
        return f"{counts}; each of {self.gradients:,} gradient numbers equals one device's within {worst:.0e}."

    def to_dict(self) -> dict:
        """Plain data for JSON, which has no word for NaN and infinity: they become null."""
        rows = [{name: _finite(value) for name, value in asdict(row).items()} for row in self.rows]
        return {"ok": self.ok, "seconds": self.seconds, "rows": rows}

    def __str__(self) -> str:
        from hfscale.display.tables import comparison_text

        return comparison_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from hfscale.display.tables import comparison_html

        return comparison_html(self)


def _finite(value):
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def count(number: int, one: str, many: str | None = None) -> str:
    """ "1 run", "2 runs"; `many` where an s is not enough."""
    return f"{number} {one if number == 1 else many or one + 's'}"
