"""The pocket models' tokenizer: byte-level BPE of 2,048 tokens, trained on the same docstrings."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 2048
EOS_ID, PAD_ID = 0, 1


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level, so that any text can be encoded and decoded without loss. `<|endoftext|>` is bos and eos."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|endoftext|>", "<|pad|>"],  # in this order: EOS_ID, PAD_ID
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
