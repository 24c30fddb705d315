"""The script that makes the checkpoints, without the minutes that pretraining takes."""

import numpy as np
import pytest
import torch
import yaml

from hfscale.models import load_config, load_model, load_tokenizer, pretrain


def test_the_command_leaves_a_loadable_checkpoint_and_its_card(tmp_path, monkeypatch, capsys):
    measured = {"model_loss": 7.5, "bigram_loss": 4.25, "unigram_loss": 6.5}
    gains = {"finetuning_before": 7.0, "finetuning_after": 6.0, "finetuning_smallest_gain": 1.0, "finetuning_orders": 1}
    monkeypatch.setattr(pretrain, "evaluate", lambda folder, train, held_out: measured | gains)
    monkeypatch.setattr(pretrain, "split_docstrings", lambda: (["One docstring of several words."] * 400, ["Another."]))
    monkeypatch.setattr(pretrain, "VOCAB_SIZE", 300)
    threads = torch.get_num_threads()
    pretrain.main(["pocket-moe", "--out", str(tmp_path), "--steps", "2"])
    torch.set_num_threads(threads)

    assert "step     2  train" in capsys.readouterr().out
    assert load_config(str(tmp_path)).dtype == torch.bfloat16
    ids = load_tokenizer(str(tmp_path))("One docstring", return_tensors="pt")["input_ids"]
    assert load_model(str(tmp_path))(input_ids=ids).logits.isfinite().all()
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in tmp_path.iterdir())
    card = (tmp_path / "README.md").read_text()
    facts = yaml.safe_load(card.split("---\n")[1])["hfscale"]
    assert facts.items() >= {"pretraining_steps": 2, "train_docstrings": 400, **measured, **gains}.items()
    assert "| bigram model (interpolated Witten-Bell) | 4.25 |" in card


def test_an_unknown_model_is_refused(capsys):
    with pytest.raises(SystemExit):
        pretrain.main(["pocket-bert", "--out", "somewhere"])
    assert "invalid choice: 'pocket-bert'" in capsys.readouterr().err


def test_packing_puts_eos_around_each_document():
    stream = pretrain.pack([np.array([5, 6]), np.array([7])], order=[1, 0])
    assert stream.tolist() == [0, 7, 0, 5, 6, 0]


def test_the_schedule_warms_up_and_ends_at_a_tenth():
    shares = [pretrain._share_of_peak(step, 200) for step in range(201)]
    assert shares[0] == 1 / pretrain.WARM_UP_STEPS
    assert max(shares) == shares[pretrain.WARM_UP_STEPS] == 1
    assert shares[200] == pytest.approx(0.1)


def test_stream_loss_predicts_each_token_once(monkeypatch):
    """With windows of 4, the loss over 10 tokens is that of three windows, the last of them short."""
    monkeypatch.setattr(pretrain, "WINDOW", 4)
    torch.manual_seed(0)
    model = pretrain.new_model("pocket-llama").eval()
    stream = np.arange(10)
    pieces = [list(range(start, min(start + 5, 10))) for start in (0, 4, 8)]
    with torch.no_grad():
        sums = [model(input_ids=torch.tensor([p]), labels=torch.tensor([p])).loss.item() * (len(p) - 1) for p in pieces]
    assert pretrain.stream_loss(model, stream) == pytest.approx(sum(sums) / 9, rel=1e-5)


def test_the_balance_of_experts_stays_out_of_the_loss():
    torch.manual_seed(0)
    model = pretrain.new_model("pocket-moe")
    ids = torch.arange(40).reshape(2, 20)
    loss, imbalance = pretrain._losses(model, ids)
    assert loss.item() == pytest.approx(model(input_ids=ids, labels=ids).loss.item())
    assert imbalance.item() == pytest.approx(1, abs=0.2)  # freshly initialised: nearly even


def test_imbalance_is_1_when_even_and_the_number_of_experts_when_one_takes_all():
    even = torch.eye(4) * 50
    assert pretrain.imbalance(even, top_k=1).item() == pytest.approx(1)
    assert pretrain.imbalance(even[:1].expand(4, -1), top_k=1).item() == pytest.approx(4)
