"""Megatron-LM's layers whose attention is run by the engine torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import test_megatron

from ranks import ENGINE


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    monkeypatch.setenv(ENGINE, "torch")


def test_models_are_those_of_one_process():
    test_megatron.test_models_are_those_of_one_process()


def test_communication_is_that_of_the_strategy():
    test_megatron.test_communication_is_that_of_the_strategy(2)
