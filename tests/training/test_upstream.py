"""Faults of the libraries that hfscale works around. A test here fails when a workaround is no longer needed: remove
both.
"""

from pathlib import Path

import pytest

import hfscale as hs

GARDEN = str(Path(__file__).parents[1] / "fixtures" / "garden.txt")


def build_tensor_parallel_trainer():
    """Plain transformers.Trainer with a tensor-parallel model on CPU ranks."""
    import tempfile

    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    from hfscale import Strategy
    from hfscale.models import resolve

    model = Strategy.parse("tp=2").load(AutoModelForCausalLM, resolve("pocket-llama"), dtype=torch.float32)
    arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True, save_strategy="no", report_to="none")
    try:
        Trainer(model=model, args=arguments)
    except ValueError as error:
        return str(error)
    return "accepted"


def test_accelerate_still_refuses_tensor_parallelism_on_cpu_ranks(ranks):
    assert "MULTI_CPU" in ranks(build_tensor_parallel_trainer).by_rank[0], (
        "accelerate accepts it now: hfscale/training/cpu_parallelism.py can go"
    )


def norm_gradients(corrected):
    """Largest relative error of a q_norm or k_norm gradient under tp=2, two micro-batches against one device."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
    from transformers.distributed.tensor_parallel import ReplicatedWithGradAllReduce

    from hfscale import Strategy
    from hfscale.models import resolve
    from hfscale.training import replicated_gradient
    from hfscale.training.snapshots import gradients

    def accumulated(model):
        for seed in (1, 2):
            ids = torch.randint(3, 500, (2, 16), generator=torch.Generator().manual_seed(seed))
            model(input_ids=ids, labels=ids).loss.backward()
        return {name: gradient for name, gradient in gradients(model).items() if "_norm" in name and "attn" in name}

    path = resolve("pocket-moe")
    whole = accumulated(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))
    strategy = Strategy.parse("tp=2")
    if corrected:
        model = strategy.load(AutoModelForCausalLM, path, dtype=torch.float32)
    else:
        ALL_PARALLEL_STYLES.register(replicated_gradient.STYLE, ReplicatedWithGradAllReduce())
        config = strategy.distributed_config()
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, distributed_config=config)
    split = accumulated(model)
    return max(float((split[name] - g).abs().max() / g.abs().max()) for name, g in whole.items())


def test_accumulated_gradients_of_norms_inside_split_attention_are_right(ranks):
    assert max(ranks(norm_gradients, True).by_rank) < 1e-5


def test_transformers_still_sums_them_more_than_once(ranks):
    assert min(ranks(norm_gradients, False).by_rank) > 0.1, (
        "transformers accumulates them rightly now: hfscale/training/replicated_gradient.py can go"
    )


def without_shared_padding():
    from hfscale.training import tied_shards

    tied_shards.install = lambda: None


def test_torch_still_trains_a_tied_embedding_wrongly_when_its_rows_do_not_divide(run_root, no_leftovers):
    recipe = hs.Recipe(data=GARDEN, strategy="fsdp=3", global_batch=6, seq_len=48, steps=2, device="cpu")
    parity = hs.check_parity(recipe, setup=without_shared_padding)
    assert parity.verdict == "differs: loss", "torch shares the buffer now: hfscale/training/tied_shards.py can go"


@pytest.mark.parametrize("name", ["prepare_distribute_model", "is_distributed_loading_by_transformers"])
def test_names_that_trainer_relies_on_are_there(name):
    from transformers import PreTrainedModel

    assert hasattr(PreTrainedModel, name)
