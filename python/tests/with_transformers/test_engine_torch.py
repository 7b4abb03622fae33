"""Models of Hugging Face whose attention is run by the engine torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import test_transformers

from ranks import ENGINE


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    monkeypatch.setenv(ENGINE, "torch")


def test_models_are_those_of_one_process():
    test_transformers.test_models_are_those_of_one_process("zigzag")


def test_ranks_without_tokens_have_a_filler():
    test_transformers.test_ranks_without_tokens_have_a_filler()
