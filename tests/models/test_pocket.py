"""Finding and loading models: by the kit's name, from a folder, from the Hub; and what is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hfscale.errors import HfscaleError
from hfscale.models import POCKET_MODELS, load_config, load_model, load_tokenizer, resolve

# Not forbidden to ask, and nobody answers there.
NO_HUB = {
    "HF_HUB_OFFLINE": "0",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "http_proxy": "",
    "https_proxy": "",
    "all_proxy": "",
}


@pytest.mark.parametrize("model", POCKET_MODELS)
def test_a_name_of_the_kit_is_a_folder_of_the_package(model):
    assert os.path.isfile(os.path.join(resolve(model), "model.safetensors"))


def test_a_path_will_do_as_a_text_does(folder):
    assert resolve(folder) == str(folder)
    assert load_config(folder).model_type == load_model(folder).config.model_type == "llama"
    with pytest.raises(HfscaleError, match=r"There is no folder .*nowhere"):
        load_tokenizer(folder / "nowhere")


def test_a_local_folder_becomes_absolute(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert resolve(folder.name) == resolve(f"./{folder.name}/") == str(folder)


@pytest.mark.parametrize("model", ["gpt2", "org/name", "Qwen/Qwen3-0.6B", "a.b_c/d-e.f"])
def test_a_hub_id_stays_as_it_is(model):
    assert resolve(model) == model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("pocket-lama", "did you mean pocket-llama"),
        ("Pocket_MoE", "did you mean pocket-moe"),
        ("./nowhere", "no folder nowhere"),
        ("/nowhere/at/all", "no folder /nowhere/at/all"),
        ("~/nowhere", "no folder .*/nowhere"),
        ("runs/models/mine", "no folder runs/models/mine"),
        ("mine/", "no folder mine"),
        ("two words", "is no model: give a name of the kit .pocket-llama, pocket-moe."),
        ("", "is no model"),
    ],
)
def test_names_that_cannot_be_models(model, sentence):
    for refuse in (resolve, load_config, load_model, load_tokenizer):
        with pytest.raises(HfscaleError, match=sentence):
            refuse(model)


def test_a_misspelt_name_is_refused_without_importing_transformers():
    code = (
        "import sys, hfscale.models as models\n"
        "try: models.load_config('pocket-lama')\n"
        "except models.pocket.HfscaleError as error: print(error)\n"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "did you mean pocket-llama?" in done.stdout


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "has no config.json"),
        ({"model.safetensors": ""}, "has no config.json"),
        ({"config.json": "{}"}, "has a config.json and no weights"),
        (
            {
                "config.json": "{}",
                "model.safetensors.index.json": json.dumps({"weight_map": {"a": "1.st", "b": "2.st", "c": "3.st"}}),
                "2.st": "",
            },
            r"lacks weights that its model.safetensors.index.json names: 1.st, 3.st\.",
        ),
        ({"config.json": "{}", "model.safetensors.index.json": "[]"}, "index.json cannot be read: expected JSON"),
        ({"config.json": "{}", "model.safetensors.index.json": "{cut"}, "index.json cannot be read: expected JSON"),
    ],
)
def test_incomplete_folders(tmp_path, files, sentence):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(HfscaleError, match=sentence):
        resolve(str(tmp_path))


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "tiny.Q4.gguf"])
def test_each_kind_of_weights_will_do(tmp_path, weights):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / weights).touch()
    assert resolve(str(tmp_path)) == str(tmp_path)


def test_a_config_alone_will_do_where_no_weights_are_needed(folder):
    (folder / "model.safetensors").unlink()
    assert load_config(str(folder), needs_weights=False).model_type == "llama"
    with pytest.raises(HfscaleError, match="no weights"):
        load_config(str(folder))


def test_a_folder_that_transformers_cannot_load_is_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "of-the-future"}')
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(HfscaleError, match=r"cannot be loaded: .*of-the-future") as caught:
        load_config(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_settings_that_do_not_fit_are_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": "many"}')
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(HfscaleError, match=r"cannot be loaded: .*hidden_size.*expected int, got str") as caught:
        load_config(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_model_with_code_of_its_own_is_refused_without_a_question(tmp_path, capfd):
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(HfscaleError, match="contains custom code"):
        load_config(tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("load", ["load_config", "load_tokenizer", "load_model"])
@pytest.mark.parametrize(
    ("offline", "reason"), [("1", "and HF_HUB_OFFLINE is set"), ("0", "and the Hub cannot be reached from here")]
)
def test_a_hub_id_that_is_not_here_is_one_sentence_at_once(load, offline, reason):
    code = (
        "import sys, hfscale.models as models\n"
        f"try: models.{load}('nobody/nothing')\n"
        "except models.pocket.HfscaleError as error: print(error)\n"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    expected = (
        "'nobody/nothing' is neither a model of the kit (pocket-llama, pocket-moe), nor a local folder, " + reason
    )
    said = run_python(code, **NO_HUB | {"HF_HUB_OFFLINE": offline})
    assert said.startswith(expected)
    assert len(said.splitlines()) == 1


def test_a_model_in_the_cache_needs_no_network(tmp_path):
    """Asked in vain for each file that a tokenizer might have, the Hub's client would try again for minutes."""
    cached = tmp_path / "hub" / "models--me--mine"
    shutil.copytree(resolve("pocket-llama"), cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    code = (
        "from transformers.utils import logging; logging.disable_progress_bar()\n"
        "from hfscale.models import check_model, load_model, load_tokenizer\n"
        "name = 'me/mine'\n"
        "print(check_model(name).model_type, len(load_tokenizer(name)), load_model(name).num_parameters())"
    )
    assert run_python(code, HF_HOME=str(tmp_path), **NO_HUB) == "llama 2048 1053824\n"


def test_a_cached_config_without_its_weights_is_not_the_model(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--me--mine" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    shutil.copy(Path(resolve("pocket-llama")) / "config.json", snapshot)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HfscaleError, match="HF_HUB_OFFLINE is set"):
        load_model("me/mine")


def test_weights_are_loaded_in_fp32_unless_asked(folder):
    assert load_config(str(folder)).dtype == torch.bfloat16
    assert {p.dtype for p in load_model(str(folder)).parameters()} == {torch.float32}
    assert {p.dtype for p in load_model(str(folder), dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_further_arguments_reach_transformers(folder):
    assert load_model(str(folder), attn_implementation="eager").config._attn_implementation == "eager"


def test_loading_shows_no_bar_and_the_users_choice_stays(folder, capfd):
    from transformers.utils import logging

    logging.enable_progress_bar()
    load_model(str(folder))
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()


def test_a_tokenizer_without_padding_pads_with_its_end_of_text(tmp_path):
    tokenizer = load_tokenizer("pocket-llama")
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|pad|>", "<|endoftext|>")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").touch()
    assert load_tokenizer(str(tmp_path)).pad_token == "<|endoftext|>"


@pytest.fixture
def folder(tmp_path):
    """A tiny Llama as save_pretrained writes it, in bf16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
    model.to(torch.bfloat16).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def run_python(code: str, **variables: str) -> str:
    """What it prints. On the other stream it prints nothing."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
