"""A sample of the model types that scripts/try-models tries."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SCRIPT = Path(__file__).parents[2] / "scripts" / "try-models"
EXACT = [
    *(
        f"decoder:{kind}"
        for kind in (
            "bart", "bloom", "cohere2", "deepseek_v3", "gemma2", "gemma3_text", "gemma4_text", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss",
            "granite", "granite_swa", "llama", "llama4_text", "marian", "mimo_v2_flash", "mistral", "mixtral", "mpt", "olmo2", "opt", "phi3",
            "qwen3", "qwen3_moe", "whisper",
        )
    ),
    *(f"encoder:{kind}" for kind in ("bert", "electra", "modernbert", "roberta")),
]  # fmt: skip
REFUSED = {
    "decoder:deepseek_v4": "compressed_sparse_attention",
    "encoder:deberta": "found no call of a layer",
}


@pytest.fixture(scope="module")
def script():
    loader = SourceFileLoader("try_models", str(SCRIPT))
    spec = importlib.util.spec_from_loader("try_models", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    torch.set_num_threads(1)
    return module


@pytest.mark.parametrize("name", [*EXACT, *REFUSED])
def test_types_are_exact_or_refused(script, name):
    if name not in script.every_type():
        pytest.skip(f"this transformers has no {name}")
    outcome, reason = script.tried(name, script.batch_tokens())
    assert outcome == ("REFUSED" if name in REFUSED else "EXACT"), reason
    assert REFUSED.get(name, "") in reason


def test_a_result_that_is_off_is_found(script):
    model, expected = script.built("decoder:llama", script.batch_tokens())
    assert script.compare(model, script.batch_tokens(), expected) < 1e-5
    assert script.compare(model, script.batch_tokens(), expected + 0.01) > 1e-4
