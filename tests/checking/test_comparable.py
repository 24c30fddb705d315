"""What cannot be compared number by number is refused, saying why."""

import shutil

import pytest

import hfscale as hs
from hfscale import Recipe
from hfscale.checking.comparable import comparable
from hfscale.errors import HfscaleError
from hfscale.models import resolve


@pytest.fixture
def folder_of(tmp_path):
    """A model folder with the pocket tokenizer, made of a config and random weights."""

    def make(kind, **settings):
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(kind, vocab_size=2048, bos_token_id=0, eos_token_id=0, **settings)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / kind)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(f"{resolve('pocket-llama')}/{name}", tmp_path / kind / name)
        return str(tmp_path / kind)

    return make


def test_a_model_with_dropout_is_refused_and_one_without_agrees(folder_of, run_root, no_leftovers):
    small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    recipe = Recipe(data="pydoc", strategy="ddp=2", steps=2, global_batch=4, seq_len=32, device="cpu")
    with pytest.raises(HfscaleError, match=r"attn_pdrop=0.1.*draws random numbers in training"):
        hs.check_parity(recipe.with_(model=folder_of("gpt2", **small)))
    off = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    parity = hs.check_parity(recipe.with_(model=folder_of("gpt2", **small, **off)))
    assert parity.ok, str(parity)


def test_noise_that_a_recipe_asks_for_is_refused():
    with pytest.raises(HfscaleError, match="neftune_noise_alpha=5"):
        comparable(Recipe(training_arguments={"neftune_noise_alpha": 5}))


def test_evaluation_is_left_out_of_a_comparison():
    recipe = Recipe(eval_samples=4, training_arguments={"eval_strategy": "steps", "eval_steps": 1, "weight_decay": 0.1})
    assert comparable(recipe) == recipe.with_(eval_samples=0, training_arguments={"weight_decay": 0.1})
