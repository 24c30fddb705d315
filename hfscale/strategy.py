"""Strategy: where the work happens, as four sizes (ddp, fsdp, tp, ep), and which models can be laid out that way.

`ddp=N` alone is torch's DistributedDataParallel. Everything else is transformers' own `DistributedConfig`: hfscale adds
no sharding of its own, it checks that a model can take the layout, and loads the model under it.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hfscale.errors import HfscaleError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.distributed import DistributedConfig

AXES = {
    "ddp": "whole copies of the model, each with its own share of the batch",
    "fsdp": "the batch and every parameter, gradient and optimizer state are split",
    "tp": "every large matrix is split; the ranks of a group compute one batch together",
    "ep": "the experts of a mixture-of-experts model are split; tokens travel to them",
}


LARGEST_SIZE = 2**20  # more ranks than there are accelerators: a slip of the finger


@dataclass(frozen=True)
class Strategy:
    """Sizes of the four axes. World size is ddp x fsdp x tp; `ep` overlays fsdp x tp, it adds no ranks."""

    ddp: int = 1
    fsdp: int = 1
    tp: int = 1
    ep: int = 1

    @classmethod
    def parse(cls, text: str | Strategy) -> Strategy:
        """Read "single", "ddp=2", "fsdp=2,tp=2", "ep=2", ...; raises HfscaleError with what is wrong and what is legal.

        `ep` larger than `tp` needs data ranks to exchange tokens with: where fsdp is not named it becomes ep / tp,
        so "ep=2" means "fsdp=2,ep=2".
        """
        if isinstance(text, Strategy):
            return text
        if not isinstance(text, str) or not text.strip():
            raise HfscaleError(f"The strategy is {text!r}: expected text such as 'single', 'ddp=2' or 'fsdp=2,tp=2'.")
        if text.strip().lower() == "single":
            return cls()
        sizes: dict[str, int] = {}
        for part in text.split(","):
            axis, size = _parse_axis(part.strip(), text)
            if axis in sizes:
                raise HfscaleError(
                    f"Strategy '{text}' names {axis} twice ({axis}={sizes[axis]} and {axis}={size}): name it once."
                )
            sizes[axis] = size
        tp, ep = sizes.get("tp", 1), sizes.get("ep", 1)
        if ep > tp and "fsdp" not in sizes and ep % tp == 0:
            sizes["fsdp"] = ep // tp
        return cls(**sizes)

    def __post_init__(self):
        for axis in AXES:
            size = getattr(self, axis)
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_SIZE:
                raise HfscaleError(
                    f"{axis}={size!r} is not a size: {axis} counts ranks, a whole number from 1 to {LARGEST_SIZE:,}."
                )
        if self.ep > 1 and self.ep % self.tp:
            raise HfscaleError(
                f"ep={self.ep} is not a multiple of tp={self.tp}: the ranks of one tp group hold different experts, "
                f"so ep is {self.tp}, {2 * self.tp}, {3 * self.tp}, ..."
            )
        if self.ep > 1 and (self.fsdp * self.tp) % self.ep:
            legal = [ep for ep in _divisors(self.fsdp * self.tp) if ep % self.tp == 0 and ep > 1]
            raise HfscaleError(
                f"ep={self.ep} does not divide fsdp x tp = {self.fsdp * self.tp}: experts are spread over those ranks, "
                f"so ep can be {_either(legal) if legal else 'used only with more fsdp or tp ranks'}."
            )

    def __str__(self) -> str:
        sizes = {axis: getattr(self, axis) for axis in AXES if getattr(self, axis) > 1}
        if self.ep > self.tp and self.fsdp == self.ep // self.tp:
            sizes.pop("fsdp")  # implied by ep
        return ",".join(f"{axis}={size}" for axis, size in sizes.items()) or "single"

    @property
    def world_size(self) -> int:
        """How many ranks (processes, devices) take part: ddp x fsdp x tp."""
        return self.ddp * self.fsdp * self.tp

    @property
    def data_ranks(self) -> int:
        """How many different shares of the batch there are: ddp x fsdp. Ranks of one tp group read the same share."""
        return self.ddp * self.fsdp

    def data_rank(self, rank: int) -> int:
        """Which share of the batch this rank reads. The tp axis is the innermost of transformers' mesh."""
        return rank // self.tp

    @property
    def is_sharded(self) -> bool:
        """Whether transformers lays the model out at load time; False for "single" and for plain ddp."""
        return self.fsdp > 1 or self.tp > 1 or self.ep > 1

    def distributed_config(self) -> DistributedConfig | None:
        """The transformers DistributedConfig of this layout; None for "single" and plain ddp, which need none."""
        if not self.is_sharded:
            return None
        from transformers.distributed import DistributedConfig

        return DistributedConfig(dp_replicate_size=self.ddp, fsdp_size=self.fsdp, tp_size=self.tp, ep_size=self.ep)

    def load(self, auto_class: Any, path: str, **kwargs) -> PreTrainedModel:
        """`auto_class.from_pretrained(path, **kwargs)` on this rank's part of the model.

        Call it in every rank. `auto_class` is e.g. AutoModelForCausalLM; give `dtype`, since transformers 5 otherwise
        loads the dtype of the checkpoint. Raises HfscaleError when the number of ranks is not this strategy's.
        """
        import torch.distributed as dist

        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if ranks != self.world_size:
            raise HfscaleError(
                f"Strategy '{self}' needs {self.world_size} ranks and {ranks} take part: launch it with "
                f"world_size={self.world_size}."
            )
        if self.is_sharded:
            from hfscale.training import replicated_gradient, tied_shards

            replicated_gradient.install()
            tied_shards.install()
            kwargs["distributed_config"] = self.distributed_config()
        return auto_class.from_pretrained(path, **kwargs)

    def check(self, config: PreTrainedConfig, name: str = "the model") -> None:
        """Refuse a layout that this model cannot take, before anything starts. Raises HfscaleError with legal values.

        Without this check a model whose heads do not divide loads cleanly and dies in its forward pass with a shape
        error (transformers#48307).
        """
        if reason := self.refusal(config, name):
            raise HfscaleError(reason)

    def refusal(self, config: PreTrainedConfig, name: str = "the model") -> str | None:
        """Why `config`'s model cannot take this layout, in a sentence with the legal values; None when it can."""
        text, kind = config.get_text_config(), f"{name} ({config.model_type})"
        if self.tp > 1:
            if not text.base_model_tp_plan:
                return f"'{self}' needs a tensor-parallel plan and {kind} has none: use ddp or fsdp."
            heads, kv_heads = text.num_attention_heads, getattr(text, "num_key_value_heads", None)
            kv_heads = kv_heads or heads
            if heads % self.tp or kv_heads % self.tp:
                legal = _divisors(math.gcd(heads, kv_heads))
                return (
                    f"tp={self.tp} cannot split the {heads} attention heads and {kv_heads} key-value heads of {name}: "
                    f"use tp={_either(legal)}."
                )
        if self.ep > 1:
            experts = expert_count(config)
            if not experts:
                return f"ep={self.ep} needs experts and {kind} is a dense model: use ddp, fsdp or tp."
            if not text.base_model_ep_plan:
                return f"'{self}' needs an expert-parallel plan and {kind} has none: use ddp or fsdp."
            if experts % self.ep:
                return (
                    f"ep={self.ep} cannot split the {experts} experts of {name}: use ep={_either(_divisors(experts))}."
                )
        if self.is_sharded and self.data_ranks > 1 and not text.base_model_fsdp_plan:
            return f"'{self}' needs an FSDP plan and {kind} has none: use ddp."
        return None

    def mesh_text(self, global_batch: int | None = None) -> str:
        """The ranks as a grid: a row for each data rank, a column for each tp rank; with the rows of the batch they
        read.
        """
        lines = [f"{self}: {_count(self.world_size, 'rank')}, {_count(self.data_ranks, 'data rank')}"]
        if self.tp > 1:
            lines.append(" " * 14 + "".join(f"tp {column}".ljust(9) for column in range(self.tp)))
        for row in range(self.data_ranks):
            cells = "".join(f"rank {row * self.tp + column}".ljust(9) for column in range(self.tp))
            line = f"  {self._row_name(row):<12}{cells}"
            if global_batch:
                first, last = row * global_batch // self.data_ranks, (row + 1) * global_batch // self.data_ranks - 1
                line += f"reads rows {first} to {last} of {global_batch}"
            lines.append(line.rstrip())
        if self.ep > 1:
            experts = [f"rank {rank}: share {rank % self.ep} of {self.ep}" for rank in range(self.world_size)]
            lines.append("  experts     " + ", ".join(experts))
        return "\n".join(lines)

    def _row_name(self, row: int) -> str:
        replica, shard = divmod(row, self.fsdp)
        names = [f"ddp {replica}"] if self.ddp > 1 else []
        names += [f"fsdp {shard}"] if self.fsdp > 1 else []
        return " ".join(names)


def expert_count(config: PreTrainedConfig) -> int:
    """How many experts each mixture-of-experts layer of this model has; 0 for a dense model."""
    text = config.get_text_config()
    for field in ("num_experts", "num_local_experts", "n_routed_experts"):
        if count := getattr(text, field, None):
            return count
    return 0


def _parse_axis(part: str, text: str) -> tuple[str, int]:
    axis, equals, size = part.partition("=")
    axis, size = axis.strip().lower(), size.strip()
    if axis == "pp":
        raise HfscaleError(f"Strategy '{text}': pipeline parallelism (pp) is not supported; use ddp, fsdp, tp or ep.")
    if axis == "single":
        raise HfscaleError(f"Strategy '{text}': 'single' stands alone; drop it, or drop the rest.")
    if axis not in AXES:
        close = difflib.get_close_matches(axis, AXES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise HfscaleError(f"Strategy '{text}' names the axis '{axis}': {hint}Axes are {', '.join(AXES)}, or 'single'.")
    if not equals or not size.isdecimal() or int(size) < 1:
        raise HfscaleError(
            f"Strategy '{text}': {axis} needs a number of ranks from 1, such as {axis}=2; here it is '{part}'."
        )
    return axis, int(size)


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def _either(values: list[int]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
