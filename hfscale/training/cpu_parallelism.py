"""Lets accelerate's ParallelismConfig through on CPU ranks; on GPUs nothing here has an effect.

accelerate counts one process per GPU as a multi-device set-up and several CPU processes not, so that Trainer refuses a
tensor-parallel model on the CPU, although it trains it correctly. What the skipped check would ensure (the product of
the sizes is the number of processes) is ensured by `Strategy.load`. `tests/training/test_upstream.py` fails when
accelerate no longer needs this.
"""

from __future__ import annotations

from importlib.metadata import version

from accelerate import Accelerator, ParallelismConfig
from accelerate.utils import DistributedType
from packaging.version import Version

from hfscale.errors import HfscaleError

if not Version("1.15") <= Version(version("accelerate")) < Version("2"):
    raise HfscaleError(
        f"accelerate {version('accelerate')} is installed; hfscale knows the internals of 1.15 up to 2: "
        "pip install 'accelerate>=1.15,<2'."
    )


class CpuParallelismConfig(ParallelismConfig):
    """A ParallelismConfig that several gloo ranks may use."""

    def _validate_accelerator(self, accelerator: Accelerator) -> None:
        if accelerator.distributed_type != DistributedType.MULTI_CPU:
            super()._validate_accelerator(accelerator)


def allow_on_cpu(accelerator_args: dict) -> dict:
    """Trainer's keyword arguments for Accelerator, with the parallelism config made acceptable on CPU ranks."""
    if (config := accelerator_args.get("parallelism_config")) is not None:
        # The object is Trainer's own and already filled in; only its check has to change.
        config.__class__ = CpuParallelismConfig
    return accelerator_args
