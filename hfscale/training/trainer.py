"""ScaleTrainer: transformers.Trainer that trains under every strategy, on CPU and GPU, with the same batches under
each.
"""

from __future__ import annotations

import datasets
import torch
import torch.distributed as dist
import transformers
from torch.utils.data import DataLoader

from hfscale.data.batching import GlobalBatches, MaskFiller, WithFiller
from hfscale.errors import HfscaleError
from hfscale.strategy import Strategy
from hfscale.training.arguments import label_smoothing_refusal, sampling_refusal
from hfscale.training.cpu_parallelism import allow_on_cpu


class ScaleTrainer(transformers.Trainer):
    """Use it as you use `transformers.Trainer`, in every rank, with a model from `Strategy.load`.

    It changes two things. Tensor and expert parallelism also work on CPU ranks. And the samples of a global batch
    depend on seed and epoch alone, not on the number of ranks: the ranks of one tensor-parallel group read the same
    rows, data ranks read their own share, none is repeated to fill the last batch. The loss is the mean over the tokens
    of the global batch; Trainer does that part (`average_tokens_across_devices`).
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if reasons := self._refusals():
            raise HfscaleError(reasons[0])

    def _build_accelerator_args(self, **kwargs) -> dict:
        return allow_on_cpu(super()._build_accelerator_args(**kwargs))

    def get_train_dataloader(self) -> DataLoader:
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        seed = None if self.args.train_sampling_strategy == "sequential" else seed
        return self._global_dataloader(self.train_dataset, self._train_batch_size, "Training", seed)

    def get_eval_dataloader(self, eval_dataset=None) -> DataLoader:
        eval_dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(eval_dataset, str):  # Trainer's name for one of several evaluation sets
            eval_dataset = self.eval_dataset[eval_dataset]
        return self._global_dataloader(eval_dataset, self.args.eval_batch_size, "Evaluation", seed=None)

    def evaluation_loss(self, eval_dataset=None) -> float:
        """Mean loss over the target tokens of the evaluation set, in nats; the same number on every rank.

        Trainer's own `evaluate` averages over batches, which weighs a token of a short batch more.
        """
        totals = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        self.model.eval()
        for batch in self.get_eval_dataloader(eval_dataset):
            batch = self._prepare_inputs(batch)
            targets = batch["labels"][:, 1:].ne(-100).sum()
            # Trainer adds autocast to the model when training starts: evaluation before that would be in fp32.
            with torch.no_grad(), self.accelerator.autocast():
                # Asking for the sum (one item) and not for the mean keeps a fully masked batch at zero, not at NaN.
                loss = self.model(**batch, num_items_in_batch=torch.ones((), device=self.args.device)).loss
            totals += torch.stack([loss.double(), targets.double()])
        if dist.is_initialized():
            dist.all_reduce(totals)  # ranks of one tp group count the same rows, in numerator and denominator alike
        loss, targets = totals.tolist()
        return loss / max(targets, 1)

    @property
    def data_parallel(self) -> tuple[int, int]:
        """(number of data ranks, this rank's place among them)."""
        tp = self.get_tp_size()
        return self.args.world_size // tp, self.args.process_index // tp

    def _refusals(self) -> list[str]:
        """What a recipe is refused for before a process starts; here for scripts without a recipe."""
        found = [sampling_refusal(self.args.train_sampling_strategy)]
        if layout := getattr(self.model.config, "distributed_config", None):
            strategy = Strategy(layout.dp_replicate_size, layout.fsdp_size, layout.tp_size, layout.ep_size)
            found.append(label_smoothing_refusal(self.args.label_smoothing_factor, strategy))
        return [reason for reason in found if reason]

    def _global_dataloader(self, dataset, batch_size: int, description: str, seed: int | None) -> DataLoader:
        if dataset is None or not hasattr(dataset, "__len__"):
            raise HfscaleError(
                f"{description} needs a dataset with a length, since ranks share it by row number; it is "
                f"{type(dataset).__name__}. Turn a stream into a dataset first, e.g. Dataset.from_list(list(stream))."
            )
        collator = self.data_collator
        if isinstance(dataset, datasets.Dataset):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(collator, description=description)
        data_ranks, data_rank = self.data_parallel
        # Not prepared by accelerate: it would shard the batches once more. Trainer moves the tensors to the device.
        return _EpochLoader(
            WithFiller(dataset),
            batch_sampler=GlobalBatches(len(dataset), batch_size, data_ranks, data_rank, seed),
            collate_fn=MaskFiller(collator),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
        )


class _EpochLoader(DataLoader):
    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)
