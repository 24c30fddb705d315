"""What is refused of a model before a process starts: its kind, its tokenizer, its weights."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hfscale.errors import HfscaleError
from hfscale.models import POCKET_MODELS, check_model, load_config, load_model, load_tokenizer, resolve


@pytest.mark.parametrize("model", POCKET_MODELS)
def test_a_whole_model_passes_by_name_and_from_a_folder(model, tmp_path, capfd):
    folder = copy(model, tmp_path)
    capfd.readouterr()
    for found in (check_model(model), check_model(folder), check_model(str(folder), task="causal-lm")):
        assert found.to_dict() == load_config(model).to_dict() | {"_name_or_path": found._name_or_path}
    assert capfd.readouterr() == ("", "")


def test_experts_stored_one_by_one_and_shards_pass(tmp_path):
    """As most checkpoints on the Hub are: their names are not those of the model's parameters."""
    folder = copy("pocket-moe", tmp_path)
    (folder / "model.safetensors").unlink()
    load_model("pocket-moe").save_pretrained(folder, max_shard_size="1MB")
    stored = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert "model.layers.0.mlp.experts.0.down_proj.weight" in stored
    assert len(set(stored.values())) > 3
    check_model(folder)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            "is a T5ForConditionalGeneration, not a",
        ),
        ({"model_type": "t5", "architectures": None}, "is of the type t5, not a causal language model"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "is a BertForMaskedLM, not a causal language"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "is a LlamaForSequenceClassification, not a causal"),
    ],
)
def test_a_model_of_another_kind_is_refused(tmp_path, changes, sentence):
    with pytest.raises(HfscaleError, match=sentence):
        check_model(copy("pocket-llama", tmp_path, **changes))


def test_a_config_that_names_no_class_passes(tmp_path):
    assert check_model(copy("pocket-llama", tmp_path, architectures=None)).model_type == "llama"


def test_a_model_that_the_user_registered_passes(tmp_path):
    code = (
        "import sys, transformers as tr\n"
        "class MineConfig(tr.LlamaConfig): model_type = 'mine'\n"
        "class MineForCausalLM(tr.LlamaForCausalLM): config_class = MineConfig\n"
        "tr.AutoConfig.register('mine', MineConfig); tr.AutoModelForCausalLM.register(MineConfig, MineForCausalLM)\n"
        "from hfscale.models import check_model; print(check_model(sys.argv[1]).model_type)"
    )
    folder = copy("pocket-llama", tmp_path, model_type="mine", architectures=["MineForCausalLM"])
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60)
    assert done.stdout == "mine\n", done.stderr


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("tokenizer.json", None, "copy has no tokenizer.json, and no other tokenizer that can be loaded from it"),
        ("tokenizer.json", "{cut", "copy/tokenizer.json is broken: expected a JSON object"),
        ("tokenizer.json", "", "copy/tokenizer.json is broken"),
        ("tokenizer.json", "{}", "The tokenizer in .*copy cannot be loaded: KeyError"),
        ("tokenizer_config.json", "[]", "copy/tokenizer_config.json is broken"),
        ("tokenizer_config.json", None, "has neither a padding nor an end-of-text token"),
    ],
)
def test_a_tokenizer_that_is_missing_or_broken(tmp_path, file, content, sentence):
    folder = copy("pocket-llama", tmp_path)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(HfscaleError, match=sentence):
        check_model(folder)


def test_a_tokenizer_with_an_end_of_text_token_alone_passes(tmp_path):
    folder = copy("pocket-llama", tmp_path)
    change(folder / "tokenizer_config.json", pad_token=None)
    check_model(folder)


def test_token_ids_that_the_model_does_not_know(tmp_path):
    folder = copy("pocket-llama", tmp_path, vocab_size=2000)
    with pytest.raises(HfscaleError, match="gives token ids up to 2047 and the model knows those below 2000"):
        check_model(folder)


def test_a_token_that_was_added_without_resizing(tmp_path):
    folder = copy("pocket-llama", tmp_path)
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["zzzz"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(HfscaleError, match=r"up to 2048 and .* below 2048: .* without model.resize_token_embeddings"):
        check_model(folder)


def test_a_special_token_beyond_the_vocabulary_matters_only_if_batches_hold_it(tmp_path):
    """Some language models share the tokenizer of one that sees images, with a token that they have no row for."""
    folder = copy("pocket-llama", tmp_path)
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    check_model(folder)
    tokenizer.pad_token = "<image>"
    tokenizer.save_pretrained(folder)
    with pytest.raises(HfscaleError, match="gives token ids up to 2048"):
        check_model(folder)


@pytest.mark.parametrize(
    ("kept", "sentence"),
    [
        (slice(0, 100_000), "model.safetensors is not a whole safetensors file .*: it was cut off"),
        (slice(0, -1), "model.safetensors is not a whole safetensors file"),
        (slice(0, 0), "model.safetensors is not a whole safetensors file"),
    ],
)
def test_weights_that_were_cut_off(tmp_path, kept, sentence):
    file = copy("pocket-llama", tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[kept])
    with pytest.raises(HfscaleError, match=sentence):
        check_model(file.parent)


def test_one_shard_that_was_cut_off_is_named(tmp_path):
    folder = copy("pocket-llama", tmp_path)
    (folder / "model.safetensors").unlink()
    load_model("pocket-llama").save_pretrained(folder, max_shard_size="2MB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(HfscaleError, match=f"{shard.name} is not a whole safetensors file"):
        check_model(folder)


def test_a_pointer_in_place_of_the_weights(tmp_path):
    folder = copy("pocket-llama", tmp_path)
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(HfscaleError, match="is a Git LFS pointer in place of the weights: run `git lfs pull`"):
        check_model(folder)


def test_weights_that_the_configuration_does_not_fit_are_refused_in_silence(tmp_path, capfd):
    folder = copy("pocket-llama", tmp_path, num_hidden_layers=9)
    with pytest.raises(HfscaleError, match="lack 45 of the parameters"):
        check_model(folder)
    assert capfd.readouterr() == ("", "")


def test_quantised_weights_are_left_to_whoever_loads_them(tmp_path):
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    check_model(copy("pocket-llama", tmp_path, num_hidden_layers=9, quantization_config=quantised))


def copy(model: str, tmp_path: Path, **changes) -> Path:
    """A folder of one's own with a pocket model, its config changed."""
    folder = tmp_path / "copy"
    shutil.copytree(resolve(model), folder)
    change(folder / "config.json", **changes)
    return folder


def change(file: Path, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
