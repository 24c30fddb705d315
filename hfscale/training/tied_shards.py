"""Corrects FSDP for a tied embedding whose rows do not divide by the number of ranks.

The tied weight belongs to two FSDP groups, those of the embedding and of the head. A shard that is shorter than the
others is padded: each group copies it into a buffer of its own, and the optimizer updates only the last one, so that
the other use computes with old rows (torch 2.13; measured: pocket-llama under fsdp=3 is 3e-3 off in its second loss).
Here the second group uses the buffer that the first has made. `tests/training/test_upstream.py` fails when torch no
longer needs this.
"""

from __future__ import annotations

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

_plain_reset = FSDPParam.reset_sharded_param


def install() -> None:
    """Make models that are sharded from now on share the padded buffer of a tied weight."""
    FSDPParam.reset_sharded_param = _reset


def _reset(self: FSDPParam) -> None:
    module = self._module_info.module
    shard = getattr(module, self._module_info.param_name)._local_tensor
    size = self.padded_sharded_param_size
    padded_bytes = size.numel() * shard.element_size()
    is_padded = shard.storage_offset() == 0 and shard.untyped_storage().nbytes() == padded_bytes
    if not shard.is_meta and shard.size() != size and is_padded:
        self._sharded_param_data = shard.as_strided((size.numel(),), (1,))
    _plain_reset(self)
