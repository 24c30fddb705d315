"""How long a launch takes: cold, warm, and against two fresh interpreters that do the same.

    python benchmarks/launch_latency.py

"The same" is: two ranks, a process group, one all-reduce, the values back. Budget: warm median at most 0.5 s.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time

from hfscale.launching.launch import launch

REPEATS = 10

FRESH = """
import os
import torch
import torch.distributed as dist
from accelerate import PartialState
import transformers.trainer

torch.set_num_threads(1)
PartialState(cpu=True)
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
"""


def main() -> None:
    cold = seconds(lambda: launch(all_reduce))
    warm = sorted(seconds(lambda: launch(all_reduce)) for _ in range(REPEATS))
    fresh = seconds(two_fresh_interpreters)
    median = statistics.median(warm)
    print(f"cores available              {os.cpu_count()}")
    print(f"cold launch of 2 ranks       {cold:6.2f} s")
    print(f"warm, median of {REPEATS}           {median:6.2f} s   (fastest {warm[0]:.2f}, slowest {warm[-1]:.2f})")
    print(f"two fresh interpreters       {fresh:6.2f} s")
    print(f"fresh / warm                 {fresh / median:6.1f}")


def all_reduce() -> float:
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def two_fresh_interpreters() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = os.environ | {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    processes = [
        subprocess.Popen([sys.executable, "-c", FRESH], env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in (0, 1)
    ]
    if any(process.wait() for process in processes):
        raise SystemExit("the fresh interpreters failed")


def seconds(call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


main()
