"""The supervisor: one process for each launch, forked from the warm server. It starts, watches and ends the ranks.

Its main thread calls accelerate's notebook_launcher; a second thread (`watch.py`) listens to the caller and looks
after the ranks. Whatever happens, it ends in `Watch.finish`, which writes the outcome and leaves no process behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

from hfscale.launching.channel import keep_private, receive_message, send_message
from hfscale.launching.folders import SUPERVISOR
from hfscale.launching.processes import Process, die_with_parent
from hfscale.launching.rank import rank_main
from hfscale.launching.request import LaunchRequest
from hfscale.launching.watch import Watch

PORT_ATTEMPTS = 3

# A caller that itself runs under torchrun, Slurm's srun or `accelerate launch` has these; they would tell our ranks
# that they are its.
_OTHER_LAUNCHERS = ("TORCHELASTIC_", "ACCELERATE_USE_", "FSDP_", "PARALLELISM_CONFIG_", "OMPI_", "PMI_", "MV2_")
_OTHER_RANKS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ACCELERATE_MIXED_PRECISION",
)


def supervise(control: socket.socket, server: int) -> NoReturn:
    """Run one launch for the caller at the other end of `control`, from start to end. Never returns."""
    os.setsid()  # ranks share our process group, so that one signal to it ends them all
    die_with_parent(server)
    keep_private(control)
    message = receive_message(control)
    if message is None:
        os._exit(0)
    request = LaunchRequest(**message)
    Process.current().write(Path(request.folder) / SUPERVISOR)
    send_message(control, {"pid": os.getpid()})
    _take_surroundings(request)
    watch = Watch(request, control)
    watch.start()
    try:
        _run_ranks(request)
    except BaseException as error:  # SystemExit and elastic's SignalException too: this is the end of the process
        traceback.print_exc()
        watch.finish(error)
    watch.finish()


def _take_surroundings(request: LaunchRequest) -> None:
    """Make this process look like the caller, then set what launcher and libraries read."""
    os.environ.clear()
    os.environ.update({name: value for name, value in request.environment.items() if not _of_another_launcher(name)})
    folder = Path(request.folder)
    try:
        os.chdir(request.directory)
    except OSError:  # removed since the caller entered it
        os.chdir(folder)
    sys.path[:] = request.path
    redirect_output(folder / "supervisor.log")
    scratch = folder / ".elastic"  # elastic makes temporary folders and leaves them behind when it is killed
    scratch.mkdir()
    tempfile.tempdir = str(scratch)
    threads = str(request.threads)
    os.environ.update(
        OMP_NUM_THREADS=threads, TOKENIZERS_PARALLELISM="false", ACCELERATE_MIXED_PRECISION=request.precision
    )
    if request.device == "cpu":
        # Without the flag two CPU ranks are two independent jobs (accelerate#2741).
        os.environ.update(ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo" if sys.platform == "linux" else "lo0")
        # transformers lays its mesh over the accelerator that torch finds, whatever the run's device (pytorch#132471).
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = (
            "1"  # counting GPUs must not initialise CUDA before the ranks fork
        )


def redirect_output(path: Path) -> None:
    """Send everything that this process prints, native code included, to the end of the file at `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    sys.stdout, sys.stderr = (
        open(stream, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        for stream in (1, 2)
    )


def _run_ranks(request: LaunchRequest) -> None:
    """Fork the ranks and wait for them; raises torch's ChildFailedError when one fails."""
    import torch

    if torch.cuda.is_initialized():
        raise RuntimeError("CUDA is initialised in the supervisor, so that no rank could use it")
    for attempt in range(1, PORT_ATTEMPTS + 1):
        try:
            return _launch(request, free_port())
        except RuntimeError as error:  # torch's DistNetworkError is one
            # Somebody took the port between our look and elastic's; no rank has been started then.
            if attempt == PORT_ATTEMPTS or not _port_is_taken(error):
                raise


def _launch(request: LaunchRequest, port: int) -> None:
    # The ranks get the request by the fork; what is of no use to them stays here.
    arguments = (dataclasses.replace(request, environment={}), os.getpid())
    if request.world_size == 1:
        return _launch_one(arguments, port)
    from accelerate import notebook_launcher

    # It prints a line that calls any device CUDA. Ranks have an output of their own.
    with contextlib.redirect_stdout(io.StringIO()):
        notebook_launcher(
            rank_main,
            arguments,
            num_processes=request.world_size,
            use_port=str(port),
            mixed_precision=request.precision,
        )


def _launch_one(arguments: tuple, port: int) -> None:
    """notebook_launcher runs a single process in its caller; this forks it, with the configuration for several."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    from torch.numa.binding import AffinityMode, NumaOptions

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
        run_id="none",
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"rank": 0},
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
        numa_options=NumaOptions(AffinityMode.NODE),  # given, so that it does not ask CUDA for a default; then not used
    )
    config.numa_options = None
    elastic_launch(config, rank_main)(*arguments)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _port_is_taken(error: Exception) -> bool:
    return "EADDRINUSE" in str(error) or "address already in use" in str(error).lower()


def _of_another_launcher(name: str) -> bool:
    return name in _OTHER_RANKS or name.startswith(_OTHER_LAUNCHERS)
