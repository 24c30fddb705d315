"""The shipped checkpoints are what their cards say. Losses here are of a text of our own, the same on every Python."""

from pathlib import Path

import pytest
import torch
import yaml

from hfscale.data import load_passages, tokenise
from hfscale.models import POCKET_MODELS, load_config, load_model, load_tokenizer, resolve
from hfscale.models.pretrain_finetuning import held_out_loss

GARDEN = Path(__file__).parents[1] / "fixtures" / "garden.txt"
CHECKPOINTS = Path(resolve("pocket-llama")).parent
PARAMETERS = {"pocket-llama": 1_053_824, "pocket-moe": 1_316_224}
# Nats per token on the 107 train passages of garden.txt, cut at 128 tokens.
GARDEN_LOSS = {"pocket-llama": 5.2462, "pocket-moe": 5.3282}


@pytest.fixture(scope="module", params=POCKET_MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return load_model(name).eval()


def test_number_of_parameters(name, model):
    assert model.num_parameters() == PARAMETERS[name] == card(name)["parameters"]


def test_stored_in_bf16_loaded_in_fp32(name, model):
    assert load_config(name).dtype == torch.bfloat16
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_every_layer_of_the_moe_is_sparse_and_its_loss_is_the_plain_one():
    config = load_config("pocket-moe")
    assert (config.num_experts, config.num_experts_per_tok, config.decoder_sparse_step) == (8, 2, 1)
    assert config.mlp_only_layers == []
    assert config.norm_topk_prob
    assert not config.output_router_logits
    assert config.router_aux_loss_coef == 0


def test_every_expert_is_used():
    """An expert that no token reaches has no gradient, and expert parallelism has nothing to show on its rank."""
    rows = garden_rows("pocket-moe")[:40]
    ids = torch.tensor([token for row in rows for token in row])[None, :256]
    with torch.no_grad():
        layers = load_model("pocket-moe").eval()(input_ids=ids, output_router_logits=True).router_logits
    for logits in layers:
        chosen = logits.topk(2).indices.unique()
        assert chosen.tolist() == list(range(8))


def test_size_of_the_files():
    assert sum(file.stat().st_size for file in CHECKPOINTS.rglob("*") if file.is_file()) < 6_000_000
    assert sorted(folder.name for folder in CHECKPOINTS.iterdir()) == sorted(POCKET_MODELS)


def test_one_tokenizer_for_all():
    files = [(CHECKPOINTS / name / "tokenizer.json").read_bytes() for name in POCKET_MODELS]
    assert files[0] == files[1]
    tokenizer = load_tokenizer("pocket-llama")
    assert len(tokenizer) == 2048 == load_config("pocket-llama").vocab_size
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1)
    any_text = "def f(x):\n\treturn 'naïve' + \"日本\"  # 😀\r\n"
    assert tokenizer.decode(tokenizer(any_text)["input_ids"]) == any_text


def test_loss_on_a_text_of_our_own(name, model):
    """Wide enough for another torch build, narrow enough to see another rotary base or activation."""
    assert held_out_loss(model, garden_rows(name)) == pytest.approx(GARDEN_LOSS[name], abs=0.002)


def test_the_model_uses_more_context_than_a_bigram_can(name, model):
    rows = torch.tensor([row for row in garden_rows(name) if len(row) == 128])
    pairs = rows.unfold(1, 2, 1).flatten(0, 1)
    with torch.no_grad():
        with_context, without = (model(input_ids=ids, labels=ids).loss.item() for ids in (rows, pairs))
    assert with_context < without - 0.3


def test_the_card_says_better_than_counting_and_worth_fine_tuning(name):
    facts = card(name)
    assert facts["model_loss"] < facts["bigram_loss"] - 0.2 < facts["unigram_loss"]
    assert facts["finetuning_smallest_gain"] >= 0.3
    assert facts["finetuning_before"] - facts["finetuning_after"] >= facts["finetuning_smallest_gain"]


def garden_rows(name: str) -> list[list[int]]:
    return tokenise(load_passages(str(GARDEN))["train"], load_tokenizer(name), seq_len=128)["input_ids"][:]


def card(name: str) -> dict:
    text = (CHECKPOINTS / name / "README.md").read_text(encoding="utf-8")
    return yaml.safe_load(text.split("---\n")[1])["hfscale"]
