"""Solutions of 00_start_here."""

import torch.distributed as dist


def my_rows(rows):
    share = rows // dist.get_world_size()
    first = dist.get_rank() * share
    return list(range(first, first + share))


# A multiple of 3 ranks x 2 micro-batches.
global_batch = 12
