"""Rows to batches."""

import pickle

import torch

from hfscale.data.collating import IGNORED, CausalCollator


def test_rows_are_padded_to_the_longest():
    batch = CausalCollator(pad_token_id=9)([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, IGNORED, IGNORED]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_a_pad_token_inside_the_row_is_still_learned():
    """GPT-2 and many others pad with the token that ends a text."""
    batch = CausalCollator(pad_token_id=0)([{"input_ids": [1, 2, 0]}, {"input_ids": [3, 0]}])
    assert batch["labels"].tolist() == [[1, 2, 0], [3, 0, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_tensors_will_do_and_stay_as_they_are():
    row = torch.tensor([1, 2])
    batch = CausalCollator(0)([{"input_ids": row}])
    batch["labels"][0, 0] = 7
    assert row.tolist() == [1, 2]
    assert batch["input_ids"].tolist() == [[1, 2]]


def test_it_travels_to_workers():
    copy = pickle.loads(pickle.dumps(CausalCollator(5)))
    assert copy.pad_token_id == 5


def test_the_loss_is_the_mean_over_real_tokens():
    """Against a by-hand sum over unpadded rows, so that a label on a padded place would show."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)).eval()
    rows = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]
    batch = CausalCollator(0)([{"input_ids": row} for row in rows])
    with torch.no_grad():
        padded = model(**batch).loss
        sums = [model(input_ids=torch.tensor([row]), labels=torch.tensor([row])).loss * (len(row) - 1) for row in rows]
    torch.testing.assert_close(padded, sum(sums) / sum(len(row) - 1 for row in rows))
