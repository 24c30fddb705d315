"""The yardstick for the pocket models: counting. A model that does not beat it has learned no context."""

import numpy as np

ADDED = 0.1  # to each token's count, so that unseen tokens keep a probability
SHARES = np.linspace(0.5, 4.0, 15)


def unigram_loss(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float:
    """Mean −log p(token), in nats, over held_out[1:], of the token frequencies in `train` (1-D id arrays)."""
    return float(-np.log(_unigram(train, vocab_size)[held_out[1:]]).mean())


def bigram_loss(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float:
    """Mean −log p(token | the one before), in nats, over held_out[1:], of an interpolated Witten-Bell bigram model.

    p(b|a) = (count(a, b) + s·kinds(a)·p(b)) / (count(a) + s·kinds(a)), where kinds(a) is how many different tokens
    followed a, and p(b) the token frequency. s = 1 is Witten and Bell's rule. Here the best s of a small grid is
    taken, on the held-out text itself: that can only help the yardstick.
    """
    pairs = np.bincount(train[:-1].astype(np.int64) * vocab_size + train[1:], minlength=vocab_size**2)
    pairs_AB = pairs.reshape(vocab_size, vocab_size)  # A: the token before, B: the token
    count_A, kinds_A = pairs_AB.sum(axis=1), (pairs_AB > 0).sum(axis=1)
    p_B = _unigram(train, vocab_size)
    before, token = held_out[:-1], held_out[1:]

    def loss(s: float) -> float:
        backed_off = s * np.maximum(kinds_A[before], 1)
        p = (pairs_AB[before, token] + backed_off * p_B[token]) / (count_A[before] + backed_off)
        return float(-np.log(p).mean())

    return min(loss(s) for s in SHARES)


def _unigram(train: np.ndarray, vocab_size: int) -> np.ndarray:
    counts = np.bincount(train, minlength=vocab_size) + ADDED
    return counts / counts.sum()
