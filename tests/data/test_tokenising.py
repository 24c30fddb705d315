"""Passages to token ids, with a tokenizer made here of words."""

import datasets
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hfscale.data.tokenising import tokenise
from hfscale.errors import HfscaleError

EOS = 0


def test_rows_end_with_eos_unless_cut(tokenizer):
    rows = tokenise(passages("a b", "a b c", "a b c d", "b b b b b b"), tokenizer, seq_len=4)["input_ids"][:]
    assert rows == [[2, 3, EOS], [2, 3, 4, EOS], [2, 3, 4, 5], [3, 3, 3, 3]]


def test_rows_of_one_token_are_dropped(tokenizer):
    rows = tokenise(passages("a b", "", "c"), tokenizer, seq_len=8)["input_ids"][:]
    assert rows == [[2, 3, EOS], [4, EOS]]  # "" is eos alone


def test_only_input_ids_are_left_and_nothing_is_written(tokenizer, tmp_path):
    datasets.Dataset.from_dict({"text": ["a b"], "label": [1]}).save_to_disk(tmp_path)
    files = sorted(tmp_path.rglob("*"))
    rows = tokenise(datasets.load_from_disk(tmp_path), tokenizer, seq_len=8)
    assert rows.column_names == ["input_ids"]
    assert sorted(tmp_path.rglob("*")) == files


def test_eos_is_not_doubled_and_not_invented(tokenizer):
    assert tokenise(passages("a <eos>"), tokenizer, seq_len=8)["input_ids"][0] == [2, EOS]
    tokenizer.eos_token = None
    assert tokenise(passages("a b"), tokenizer, seq_len=8)["input_ids"][0] == [2, 3]


def test_no_progress_bar_and_the_users_choice_stays(tokenizer, capfd):
    datasets.enable_progress_bars()
    tokenise(passages("a b"), tokenizer, seq_len=8)
    assert capfd.readouterr() == ("", "")
    assert not datasets.are_progress_bars_disabled()


def test_wrong_uses(tokenizer):
    with pytest.raises(HfscaleError, match="seq_len=1 leaves nothing to predict"):
        tokenise(passages("a b"), tokenizer, seq_len=1)
    with pytest.raises(HfscaleError, match="None of the 2 passages has two tokens"):
        tokenise(passages("", ""), tokenizer, seq_len=8)


def passages(*texts: str) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts)})


@pytest.fixture
def tokenizer():
    words = Tokenizer(models.WordLevel({"<eos>": EOS, "<unk>": 1, "a": 2, "b": 3, "c": 4, "d": 5}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", unk_token="<unk>")
