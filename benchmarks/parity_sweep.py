"""The worst difference to one device, per precision, over strategies, models, seeds and awkward batches.

    python benchmarks/parity_sweep.py [--precision fp32 --precision bf16] [--seeds 3] [--steps 8]

Prints a line per run and, for each precision, the worst value of each quantity beside its bound in
hfscale/checking/parity.py. A bound more than 20 times the worst ever seen says nothing; the last column shows the
factor.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from hfscale import Recipe
from hfscale.checking.parity import BOUNDS, judge, remove_snapshots
from hfscale.launching.run import start

STRATEGIES = {
    "pocket-llama": ["ddp=2", "fsdp=2", "tp=2", "fsdp=2,tp=2", "ddp=2,tp=2"],
    "pocket-moe": ["ddp=2", "ep=2", "tp=2", "tp=2,ep=2"],
}
CONDITIONS = {
    "plain": {},
    "accumulation, last window short": {"gradient_accumulation": 2, "train_samples": 41},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", action="append", choices=["fp32", "bf16"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    for precision in options.precision or ["fp32", "bf16"]:
        sweep(precision, options.seeds, options.steps)


def sweep(precision: str, seeds: int, steps: int) -> None:
    worst: dict[str, tuple[float, str]] = defaultdict(lambda: (0.0, ""))
    for model, strategies in STRATEGIES.items():
        for condition, changes in CONDITIONS.items():
            for seed in range(seeds):
                recipe = Recipe(
                    model=model, precision=precision, seed=seed, steps=steps, eval_samples=0, device="cpu", **changes
                )
                for strategy, parity in judged(recipe, strategies):
                    print(f"{precision} {model} {strategy} ({condition}, seed {seed}): {parity.verdict}", flush=True)
                    for row in parity.rows:
                        where = f"{model} {strategy}, {condition}, seed {seed}, {row.where}"
                        worst[row.name] = max(worst[row.name], (row.worst, where))
    print(f"\n{precision}: worst seen over {steps} steps and {seeds} seeds")
    bounds = BOUNDS[precision]
    for name, bound in [
        ("loss", bounds.loss),
        ("gradient norm", bounds.gradient_norm),
        ("gradients", bounds.gradient),
        ("final parameters", bounds.parameters),
    ]:
        value, where = worst[name]
        print(f"  {name:<17} {value:.1e}   bound {bound:.0e} = {bound / value:4.1f} x   {where}")
    print(flush=True)


def judged(recipe: Recipe, strategies: list[str]):
    """(strategy, Parity) for each strategy, all against one single-device run."""
    reference = start(recipe.with_(strategy="single"), snapshot=True).wait()
    for strategy in strategies:
        run = start(recipe.with_(strategy=strategy), snapshot=True).wait()
        yield strategy, judge(run, reference)
        remove_snapshots(run)
    remove_snapshots(reference)


if __name__ == "__main__":
    main()
