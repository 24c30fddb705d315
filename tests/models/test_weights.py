"""Nothing is trained from random values unnoticed: told by what transformers says when it loads a model."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from hfscale.errors import HfscaleError
from hfscale.models import POCKET_MODELS, require_complete, resolve
from hfscale.models.weights import dry_load


def load(folder) -> dict:
    """The loading info of a real load, as ranks do it."""
    options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)[1]


@pytest.mark.parametrize("look", [load, dry_load])
@pytest.mark.parametrize("model", POCKET_MODELS)
def test_the_pocket_models_are_complete(model, look):
    """Both tie their embeddings, so that lm_head.weight is in the model and not in the file."""
    require_complete(model, look(resolve(model)))


@pytest.mark.parametrize("look", [load, dry_load])
@pytest.mark.parametrize(
    ("model", "changes", "sentence"),
    [
        (
            "pocket-llama",
            {"num_hidden_layers": 13},
            r"The weights of mine lack 81 .*: model.layers.4.input_layernorm.weight, .* and 78 more\. They would",
        ),
        ("pocket-llama", {"tie_word_embeddings": False}, r"lack 1 of .*: lm_head.weight\. They"),
        (
            "pocket-llama",
            {"intermediate_size": 300},
            r"do not fit.*: model.layers.0.mlp.down_proj.weight is stored as 128 × 344 where 128 × 300 .* with 11 more",
        ),
        ("pocket-llama", {"vocab_size": 4096}, r"embed_tokens.weight is stored as 2048 × 128 where 4096 × 128 is exp"),
        ("pocket-moe", {"num_local_experts": 16}, r"experts.down_proj is stored as 8 × 128 × 64 where 16 × 128 × 64"),
        (
            "pocket-moe",
            {"num_hidden_layers": 5},
            r"lack \d+ of the parameters.*: model.layers.4.input_layernorm.weight",
        ),
    ],
)
def test_a_configuration_of_another_model_is_refused(tmp_path, look, model, changes, sentence):
    folder = tmp_path / "copy"
    shutil.copytree(resolve(model), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(HfscaleError, match=sentence):
        require_complete("mine", look(folder))


def test_layers_are_named_in_their_order():
    missing = {f"model.layers.{layer}.mlp.up_proj.weight" for layer in (10, 9, 11)}
    info = {"missing_keys": missing, "mismatched_keys": set()}
    with pytest.raises(HfscaleError, match=r"layers\.9\..*layers\.10\..*layers\.11\.[^,]*weight\. They"):
        require_complete("mine", info)


def test_a_dry_load_allocates_nothing(monkeypatch):
    seen = []
    plain = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *a, **k: seen.append(plain(*a, **k)) or seen[0])
    dry_load(resolve("pocket-moe"))
    assert {parameter.device.type for parameter in seen[0][0].parameters()} == {"meta"}
