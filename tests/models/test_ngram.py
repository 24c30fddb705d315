"""The yardstick: if it were weak, beating it would mean nothing."""

import math

import numpy as np
import pytest

from hfscale.models import ngram


def test_unigram_by_hand():
    train, held_out = np.array([0, 0, 0, 1]), np.array([2, 0, 1, 2])
    p = (np.array([3, 1, 0]) + ngram.ADDED) / (4 + 3 * ngram.ADDED)
    assert ngram.unigram_loss(train, held_out, 3) == pytest.approx(-np.log(p[[0, 1, 2]]).mean())


def test_bigram_by_hand(monkeypatch):
    """0 is followed by 1, 1, 2: p(1|0) = (2 + 2·p(1)) / (3 + 2) by Witten and Bell."""
    monkeypatch.setattr(ngram, "SHARES", [1.0])
    train = np.array([0, 1, 0, 1, 0, 2])
    p_1 = (2 + ngram.ADDED) / (6 + 3 * ngram.ADDED)
    assert ngram.bigram_loss(train, np.array([0, 1]), 3) == pytest.approx(-math.log((2 + 2 * p_1) / 5))


def test_bigram_probabilities_sum_to_one(monkeypatch):
    monkeypatch.setattr(ngram, "SHARES", [1.0])
    random = np.random.default_rng(0)
    train = random.integers(0, 6, 200)
    train = train[train != 5]  # 5 is never seen, so everything after it comes from the unigram
    for before in (0, 5):
        losses = [ngram.bigram_loss(train, np.array([before, token]), 6) for token in range(6)]
        assert sum(math.exp(-loss) for loss in losses) == pytest.approx(1)


def test_bigram_learns_what_unigram_cannot():
    train = np.tile([0, 1, 2, 3], 100)
    held_out = np.tile([2, 3, 0, 1], 10)
    assert ngram.unigram_loss(train, held_out, 4) == pytest.approx(math.log(4), abs=0.01)
    assert ngram.bigram_loss(train, held_out, 4) < 0.02
