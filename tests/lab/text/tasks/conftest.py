"""What tests of tasks share: a tokenizer, and systems that no module is asked about."""

import pytest

from antiphase.lab.text.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["the cat sat on the mat and a dog ran to the log, then it sang ."] * 9, 300)


@pytest.fixture
def asks_nothing(monkeypatch):
    """A system reads alike in every way, and is no module that could be asked."""
    for name in ("beginnings.continues", "beginnings.takes_padding", "likelihood.generates"):
        monkeypatch.setattr(f"antiphase.lab.scoring.{name}", lambda model: True)
    for name in ("likelihood.check_causal", "constrained.check_causal"):
        monkeypatch.setattr(f"antiphase.lab.scoring.{name}", lambda model, measured: None)
