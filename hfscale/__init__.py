"""hfscale: one fine-tuning recipe, unchanged, under every parallel strategy, proved to stay the same training.

    import hfscale as hs

    recipe = hs.Recipe(model="pocket-llama", data="pydoc", strategy="tp=2")
    run = hs.run(recipe)
    hs.check_parity(recipe)

Importing hfscale imports none of the libraries below it: each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# public name -> the module that holds it
_PUBLIC = {
    "Recipe": "hfscale.recipe",
    "Strategy": "hfscale.strategy",
    "ScaleTrainer": "hfscale.training.trainer",
    "Run": "hfscale.launching.run",
    "HfscaleError": "hfscale.errors",
    "LaunchError": "hfscale.errors",
    "launch": "hfscale.launching.launch",
    "start": "hfscale.launching.run",
    "run": "hfscale.launching.run",
    "runs": "hfscale.launching.run",
    "open_run": "hfscale.launching.run",
    "compare": "hfscale.checking.compare",
    "check_parity": "hfscale.checking.parity",
    "doctor": "hfscale.checkup",
}

if TYPE_CHECKING:
    from hfscale.checking.compare import compare
    from hfscale.checking.parity import check_parity
    from hfscale.checkup import doctor
    from hfscale.errors import HfscaleError, LaunchError
    from hfscale.launching.launch import launch
    from hfscale.launching.run import Run, open_run, run, runs, start
    from hfscale.recipe import Recipe
    from hfscale.strategy import Strategy
    from hfscale.training.trainer import ScaleTrainer

__all__ = [
    "HfscaleError",
    "LaunchError",
    "Recipe",
    "Run",
    "ScaleTrainer",
    "Strategy",
    "check_parity",
    "compare",
    "doctor",
    "launch",
    "open_run",
    "run",
    "runs",
    "start",
]


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hfscale' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    # Kept, so that the next use is a plain attribute, and so that a submodule of the same name does not hide it.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
