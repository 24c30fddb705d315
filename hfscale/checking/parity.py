"""Parity: did the strategy train the same model as the reference, and did it really do what its name says?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hfscale.checking.comparable import comparable
from hfscale.checking.evidence import Evidence, collect_evidence
from hfscale.errors import HfscaleError
from hfscale.hardware import resolve_device
from hfscale.launching.launch import default_threads
from hfscale.launching.run import Run, start
from hfscale.recipe import Recipe


@dataclass(frozen=True)
class Bounds:
    """The largest differences that still count as rounding.

    loss: of any step, in nats. gradient_norm: of any step, relative. gradient: of any parameter's first gradient,
    relative. parameters: of all final parameters together, relative to how far training moved them.
    """

    loss: float
    gradient_norm: float
    gradient: float
    parameters: float


# Worst seen by benchmarks/parity_sweep.py (both pocket models, every strategy, two and four CPU ranks, 8 steps, two
# seeds, with and without accumulation), as loss, gradient norm, gradients, final parameters:   fp32  9.5e-07  1.8e-05
# 3.3e-06  2.8e-05   bf16  3.8e-03  8.7e-03  1.4e-01  6.7e-02 A bf16 product is rounded to 2^-9 of its size, and two
# strategies round at different places; where that sends a token to another expert, the gradient of a router changes
# by a step and not by a rounding: 0.14 is a router's. tf32 and fp16 need a GPU and have not been measured: their
# bounds follow from 2^-11, the rounding of both.
BOUNDS = {
    "fp32": Bounds(loss=1e-5, gradient_norm=1e-4, gradient=1e-4, parameters=5e-4),
    "tf32": Bounds(loss=1e-3, gradient_norm=1e-2, gradient=1e-2, parameters=1e-1),
    "bf16": Bounds(loss=2e-2, gradient_norm=1e-1, gradient=5e-1, parameters=5e-1),
    "fp16": Bounds(loss=5e-3, gradient_norm=5e-2, gradient=5e-2, parameters=3e-1),
}


@dataclass(frozen=True)
class Quantity:
    """One compared quantity: the worst difference, where it was, and the bound it is held against."""

    name: str
    worst: float
    bound: float
    where: str

    @property
    def ok(self) -> bool:
        return self.worst <= self.bound  # NaN is not


@dataclass(frozen=True, repr=False)
class Parity:
    """The verdict on one strategy. `rows` are the compared quantities, `evidence` what shows that the strategy
    happened.
    """

    strategy: str
    reference: str
    rows: list[Quantity]
    evidence: list[Evidence]
    suspect: str | None = None
    gradients: int = 0
    """How many gradient numbers were compared."""

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows) and all(item.ok for item in self.evidence)

    @property
    def worst(self) -> Quantity:
        """The quantity that comes closest to its bound, or exceeds it most."""
        return max(self.rows, key=lambda row: row.worst / row.bound if row.worst == row.worst else float("inf"))

    @property
    def verdict(self) -> str:
        """ "agrees", or "differs: ..." with what differs first in importance."""
        for item in self.evidence:
            if not item.ok:
                return f"differs: {item.failure}"
        failed = [row for row in self.rows if not row.ok]
        return f"differs: {failed[0].name}" if failed else "agrees"

    @property
    def reason(self) -> str:
        """One sentence behind the verdict, with numbers."""
        for item in self.evidence:
            if not item.ok:
                return f"{item.failure}: {item.what}, expected {item.expected}, seen {item.seen}."
        failed = [row for row in self.rows if not row.ok]
        row = failed[0] if failed else self.worst
        if row.ok:
            return f"closest to its bound: {row.name}, {row.worst:.1e} of {row.bound:.0e} ({row.where})."
        suspicion = f" Suspect: {self.suspect}." if self.suspect else ""
        return f"{row.name} differs by {row.worst:.1e}, bound {row.bound:.0e} ({row.where}).{suspicion}"

    def _repr_html_(self) -> str:
        from hfscale.display.tables import parity_html

        return parity_html(self)

    def __str__(self) -> str:
        lines = [f"{self.strategy} against {self.reference}: {self.verdict}"]
        for row in self.rows:
            sign = "ok " if row.ok else "BAD"
            lines.append(f"  {sign} {row.name:<18} worst {row.worst:.1e}   bound {row.bound:.0e}   {row.where}")
        for item in self.evidence:
            lines.append(f"  {'ok ' if item.ok else 'BAD'} {item.what}: {item.seen}")
        if self.suspect:
            lines.append(f"  suspect: {self.suspect}")
        return "\n".join(lines)

    __repr__ = __str__


def check_parity(
    recipe: Recipe,
    reference: str = "single",
    *,
    trainer_class: type | None = None,
    setup: Callable[[], None] | None = None,
) -> Parity:
    """Train `recipe` under its own strategy and under `reference`, from the same weights on the same batches, and
    compare.

    Compared: the loss of every step, the gradient norm of every step, the first gradient of every parameter (gathered),
    and the final parameters. `trainer_class` and `setup` reach the ranks of both runs, see `train_recipe`.
    Raises HfscaleError for a recipe that cannot run, LaunchError when a rank fails.
    """
    if not isinstance(recipe, Recipe):
        raise HfscaleError(f"check_parity needs a Recipe; it got {recipe!r}.")
    ours = comparable(recipe)
    theirs = ours.with_(strategy=reference)
    if ours.parsed_strategy == theirs.parsed_strategy:
        raise HfscaleError(f"The recipe's strategy is the reference itself ({reference}): there is nothing to compare.")
    ranks = max(ours.parsed_strategy.world_size, theirs.parsed_strategy.world_size)
    device = resolve_device(ours.device, ranks)  # the same for both
    ours, theirs = ours.with_(device=device), theirs.with_(device=device)
    ours.check()
    theirs.check()
    options = {"trainer_class": trainer_class, "setup": setup, "snapshot": True}
    options = {name: value for name, value in options.items() if value is not None}
    options["threads"] = default_threads(ranks)
    runs = []
    try:
        for each in (theirs, ours):
            runs.append(start(each, **options))
            runs[-1].wait()
        return judge(run=runs[1], reference=runs[0])
    finally:
        for run in runs:
            remove_snapshots(run)


def judge(run: Run, reference: Run) -> Parity:
    """The verdict on `run`; both are finished runs of one recipe under two strategies, with snapshots."""
    bounds = BOUNDS[run.recipe.precision]
    ours, theirs = run.result["by_rank"], reference.result["by_rank"]
    first, first_reference = _read(run, "gradients"), _read(reference, "gradients")
    rows = [
        _loss(ours[0]["losses"], theirs[0]["losses"], bounds.loss),
        _gradient_norm(ours[0]["gradient_norms"], theirs[0]["gradient_norms"], bounds.gradient_norm),
        _gradient(first, first_reference, bounds.gradient),
        _parameters(run, reference, bounds.parameters),
    ]
    suspect = None if all(row.ok for row in rows) else _suspect(first, first_reference, run)
    return Parity(
        strategy=run.recipe.strategy,
        reference=reference.recipe.strategy,
        rows=rows,
        evidence=collect_evidence(run.recipe, ours),
        suspect=suspect,
        gradients=sum(gradient.numel() for gradient in first.values()),
    )


def remove_snapshots(run: Run) -> None:
    """Snapshots are as large as the model, and of no use once they have been compared."""
    for path in run.folder.glob("*.safetensors"):
        path.unlink()


def _loss(ours: list[float], theirs: list[float], bound: float) -> Quantity:
    differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    step = _argmax(differences)
    return Quantity("loss", differences[step], bound, f"step {step + 1}")


def _gradient_norm(ours: list[float], theirs: list[float], bound: float) -> Quantity:
    differences = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(ours, theirs, strict=True)]
    step = _argmax(differences)
    return Quantity("gradient norm", differences[step], bound, f"step {step + 1}")


def _gradient(ours: dict, theirs: dict, bound: float) -> Quantity:
    """Worst error of a parameter's first gradient: largest difference / max(own largest, 1e-6 x the model's largest).

    Relative to a gradient's own size alone, two correct runs differ widely where the exact gradient is zero (the bias
    of the keys in an attention), hence the floor.
    """
    if missing := ours.keys() ^ theirs.keys():
        return Quantity("gradients", float("inf"), bound, f"only one of the two has {sorted(missing)[0]}")
    floor = 1e-6 * max(gradient.abs().max() for gradient in theirs.values())
    errors = {
        name: float((ours[name] - reference).abs().max() / max(reference.abs().max(), floor))
        for name, reference in theirs.items()
    }
    name = list(errors)[_argmax(list(errors.values()))]
    return Quantity("gradients", errors[name], bound, name)


def _parameters(run: Run, reference: Run, bound: float) -> Quantity:
    """|ours - theirs| / |theirs - start| over all final parameters: how much of the way that training went is in
    dispute.
    """
    start_, final, final_reference = _read(reference, "initial"), _read(run, "final"), _read(reference, "final")
    disputed = sum(float((final[name] - final_reference[name]).double().square().sum()) for name in final_reference)
    moved = sum(float((final_reference[name] - start_[name]).double().square().sum()) for name in final_reference)
    return Quantity("final parameters", (disputed / max(moved, 1e-30)) ** 0.5, bound, "all parameters together")


def _suspect(ours: dict, theirs: dict, run: Run) -> str | None:
    """A guess at the cause, from how the two first gradients relate: a common factor, or not one direction."""
    names = [name for name in theirs if name in ours]
    product = sum(float((ours[name].double() * theirs[name].double()).sum()) for name in names)
    square = sum(float(theirs[name].double().square().sum()) for name in names)
    if not square:
        return None
    factor = product / square
    rest = sum(float((ours[name].double() - factor * theirs[name].double()).square().sum()) for name in names)
    same_direction = (rest / (square * factor * factor)) ** 0.5 < 1e-3 if factor else False
    if same_direction and abs(factor - 1) > 1e-3:
        word = "a sum where a mean belongs" if factor > 1 else "a mean taken once too often"
        data_ranks = run.recipe.parsed_strategy.data_ranks
        return f"{word}: every gradient is {factor:.3g} times the reference's, with {data_ranks} data ranks"
    if not same_direction and abs(factor - 1) < 0.5:
        return "a mean per rank or per batch where the mean over all tokens belongs, or a missing reduction"
    return None


def _read(run: Run, name: str) -> dict:
    from safetensors.torch import load_file

    return load_file(Path(run.folder) / f"{name}.safetensors")


def _argmax(values: list[float]) -> int:
    """Index of the largest value; NaN counts as larger than everything."""
    return max(range(len(values)), key=lambda index: values[index] if values[index] == values[index] else float("inf"))
