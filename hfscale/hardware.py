"""What is in this machine, as far as a process may use it. Nothing here imports torch or touches a device."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import runpy
from pathlib import Path

from hfscale.errors import HfscaleError


def usable_cores() -> int:
    """CPU cores that this process may use: HFSCALE_CORES if set, else the affinity mask within a container's quota."""
    wish = os.environ.get("HFSCALE_CORES", "").strip()
    if wish:
        if not wish.isdecimal() or int(wish) < 1:
            raise HfscaleError(f"HFSCALE_CORES is {wish!r}: expected a positive whole number of cores, such as 2.")
        return int(wish)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, int(_cpu_quota())))


def total_memory() -> int:
    """Bytes of main memory that this process may use: the machine's, or a container's limit if that is lower."""
    import psutil

    limits = [int(text) for text in _cgroup_texts("memory.max", "memory/memory.limit_in_bytes") if text.isdecimal()]
    return min([psutil.virtual_memory().total, *limits])


def resolve_device(device: str, world_size: int) -> str:
    """ "cpu" or "cuda" for `device` in "auto", "cpu", "cuda"; raises HfscaleError when the GPUs are not there.

    Each rank gets a GPU of its own, so "auto" means the CPU when there are fewer GPUs than ranks.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise HfscaleError(f"device={device!r} is unknown: choose 'auto', 'cpu' or 'cuda'.")
    if device == "cpu":
        return "cpu"
    gpus = cuda_devices()
    if device == "cuda" and gpus == 0:
        raise HfscaleError(f"device='cuda' was asked for, but {_why_no_cuda()}. Use device='cpu'.")
    if device == "cuda" and world_size > gpus:
        raise HfscaleError(
            f"device='cuda' with {world_size} ranks needs {world_size} GPUs, one for each rank, and {gpus} can be seen "
            f"here. Use device='cpu', or at most {gpus} rank{'s' if gpus > 1 else ''}."
        )
    return "cuda" if gpus >= world_size else "cpu"


def cuda_devices() -> int:
    """NVIDIA GPUs that this torch build can use, counted through the driver's management library.

    Asking torch would import it here, and may initialise CUDA, after which no process that forks from this one can
    use it.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if _torch_cuda_version() is None or visible in ("", "-1"):
        return 0
    found = _nvml_device_count()
    return found if visible is None else min(found, len(visible.split(",")))


def _why_no_cuda() -> str:
    if _torch_cuda_version() is None:
        return "the installed torch is built without CUDA"
    return "no NVIDIA GPU can be seen here (driver, or CUDA_VISIBLE_DEVICES)"


def _torch_cuda_version() -> str | None:
    spec = importlib.util.find_spec("torch")  # finds the package without importing it
    if spec is None or spec.origin is None:
        return None
    return runpy.run_path(str(Path(spec.origin).with_name("version.py"))).get("cuda")


def _nvml_device_count() -> int:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() != 0:
        return 0
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    return count.value


def _cpu_quota() -> float:
    """Cores' worth of time that the control group allows, infinity without a limit."""
    quotas = [float("inf")]
    for text in _cgroup_texts("cpu.max", None):  # "max 100000" or "150000 100000": microseconds per period
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal():
            quotas.append(int(quota) / int(period))
    old = [text for name in ("quota", "period") for text in _cgroup_texts(None, f"cpu/cpu.cfs_{name}_us")]
    if len(old) == 2 and int(old[0]) > 0:
        quotas.append(int(old[0]) / int(old[1]))
    smallest = min(quotas)
    return max(1.0, smallest) if smallest != float("inf") else 1e9


def _cgroup_texts(name_v2: str | None, path_v1: str | None) -> list[str]:
    """The values of one limit in our control group and the groups around it: the smallest counts."""
    root = Path("/sys/fs/cgroup")
    paths = []
    if name_v2:
        group = root / _own_cgroup()
        paths += [folder / name_v2 for folder in (group, *group.parents) if folder.is_relative_to(root)]
    if path_v1:
        paths.append(root / path_v1)
    texts = []
    for path in paths:
        try:
            texts.append(path.read_text().strip())
        except OSError:  # no such controller here: no such limit
            continue
    return texts


def _own_cgroup() -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
