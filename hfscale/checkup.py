"""Behind hs.doctor: what is on this machine, whether hfscale can work with it, and what to do where it cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from hfscale import hardware
from hfscale.errors import HfscaleError
from hfscale.launching.folders import runs_root

SHOWN_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "ipywidgets", "ipykernel")
LEAST_MEMORY = 4 * 10**9  # the warm server holds some 0.3 GB and a rank of a pocket model some 0.4 GB
LEAST_DISK = 10**9


@dataclass(frozen=True)
class Line:
    """One thing looked at. ok: True, False (see advice), or None for a plain fact."""

    name: str
    value: str
    ok: bool | None = None
    advice: str = ""


@dataclass(frozen=True)
class Doctor:
    """The lines, and whether all is well."""

    lines: list[Line]

    @property
    def ok(self) -> bool:
        return all(line.ok is not False for line in self.lines)

    def __str__(self) -> str:
        from hfscale.display.tables import doctor_table, render

        return render(doctor_table(self), width=100)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from hfscale.display.tables import doctor_html

        return doctor_html(self)


def doctor(warm: bool = True) -> Doctor:
    """Look at versions, cores, accelerators, memory, disk, offline state and the kit's own models and data.

    warm: start the server that ranks fork from, in the background, since whoever asks is about to launch something.
    """
    if warm:
        from hfscale.launching.server import warm_up

        warm_up()
    return Doctor(
        [
            _python(),
            *_packages(),
            _platform(),
            _cores(),
            _accelerators(),
            _memory(),
            _runs(),
            _hub(),
            *_models(),
            _data(),
        ]
    )


def _python() -> Line:
    ok = sys.version_info >= (3, 11)
    return Line("Python", platform.python_version(), ok, "" if ok else "install Python 3.11 or newer")


def _packages() -> list[Line]:
    """Installed versions, held against the ranges that hfscale itself declares."""
    declared = {}
    for text in importlib.metadata.requires("hfscale") or []:
        requirement = Requirement(text)
        if requirement.marker is None:
            declared[requirement.name] = requirement.specifier
    lines = []
    for name in SHOWN_PACKAGES:
        version, allowed = importlib.metadata.version(name), declared[name]
        ok = allowed.contains(Version(version).base_version, prereleases=True)
        advice = "" if ok else f"hfscale is made for {name}{allowed}: pip install '{name}{allowed}'"
        lines.append(Line(name, version, ok, advice))
    return lines


def _platform() -> Line:
    system = platform.system()
    value = f"{system} {platform.machine()}"
    if system == "Linux":
        return Line("platform", value, True)
    if system == "Darwin":
        return Line("platform", value, True, "ranks run on the CPU")
    return Line("platform", value, False, "use Linux, macOS, or Windows through WSL2")


def _cores() -> Line:
    try:
        cores = hardware.usable_cores()
    except HfscaleError as error:
        return Line("cores", os.environ["HFSCALE_CORES"], False, str(error))
    limited = " (HFSCALE_CORES)" if os.environ.get("HFSCALE_CORES") else f" usable of {os.cpu_count()}"
    advice = "" if cores > 1 else "two ranks share one core: losses are right, times mean nothing"
    return Line("cores", f"{cores}{limited}", cores > 1, advice)


def _accelerators() -> Line:
    gpus = hardware.cuda_devices()
    return Line("accelerators", f"{gpus} NVIDIA GPU{'s' if gpus > 1 else ''}" if gpus else "none: ranks run on the CPU")


def _memory() -> Line:
    total = hardware.total_memory()
    advice = "" if total >= LEAST_MEMORY else "use two ranks at most, and close other kernels"
    return Line("memory", f"{total / 1e9:.1f} GB", total >= LEAST_MEMORY, advice)


def _runs() -> Line:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        root = runs_root()
    free = shutil.disk_usage(root).free
    value = f"{_short(root)}, {free / 1e9:.0f} GB free"
    if caught:
        return Line("run folders", value, False, str(caught[0].message))
    enough = free >= LEAST_DISK
    return Line("run folders", value, enough, "" if enough else "make room, or set HFSCALE_RUNS to another disk")


def _hub() -> Line:
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    value = "offline (HF_HUB_OFFLINE): only the kit's own and local files" if offline else "allowed; not tried"
    return Line("Hugging Face Hub", value)


def _models() -> list[Line]:
    from hfscale.models import POCKET_MODELS, resolve

    lines = []
    for name in POCKET_MODELS:
        try:
            size = sum(file.stat().st_size for file in Path(resolve(name)).iterdir())
            lines.append(Line(name, f"{size / 1e6:.1f} MB, in the package", True))
        except HfscaleError as error:
            lines.append(Line(name, "missing", False, str(error)))
    return lines


def _data() -> Line:
    """The text of pydoc differs between Python versions, and losses with it: the fingerprint says which text it is."""
    from hfscale.data import fingerprint

    return Line("pydoc text", f"fingerprint {fingerprint('pydoc')}")


def _short(folder: Path) -> str:
    """A path without the user's home in front."""
    for start, sign in ((Path.cwd(), "."), (Path.home(), "~"), (Path(tempfile.gettempdir()), "(temporary)")):
        if folder.is_relative_to(start):
            return f"{sign}/{folder.relative_to(start)}"
    return str(folder)
