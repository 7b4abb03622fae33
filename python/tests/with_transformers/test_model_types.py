"""A sample of the model types that scripts/try-models tries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SCRIPTS = Path(__file__).parents[3] / "scripts"
sys.path.append(str(SCRIPTS))
import model_cases
import model_ranks

pytestmark = pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
DECODERS = (
    "bart",
    "bloom",
    "cohere2",
    "deepseek_v3",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granite_swa",
    "llama",
    "llama4_text",
    "marian",
    "mimo_v2_flash",
    "mistral",
    "mixtral",
    "mpt",
    "olmo2",
    "opt",
    "phi3",
    "qwen3",
    "qwen3_moe",
    "whisper",
)
OTHERS = (
    "encoder:bert",
    "encoder:electra",
    "encoder:modernbert",
    "encoder:roberta",
    "pair:bart",
    "pair:t5",
)
REFUSED = {
    "decoder:deepseek_v4": "compressed_sparse_attention",
    "encoder:deberta": "found no call of a layer",
}
SAMPLES = {
    "decoders": [f"decoder:{kind}" for kind in DECODERS[:13]],
    "more decoders": [f"decoder:{kind}" for kind in DECODERS[13:]],
    "others": [*OTHERS, *REFUSED],
}


def lines_of(ranks, rope_types, names):
    """Returns the exit status of the script, a process that forks ranks, and its lines by type."""
    command = [
        sys.executable,
        SCRIPTS / "try-models",
        "--ranks",
        ranks,
        "--rope-types",
        rope_types,
        *names,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert lines.keys() == {*names}, done.stderr
    return done.returncode, lines


@pytest.mark.parametrize(
    "sample",
    ["decoders", pytest.param("more decoders", marks=pytest.mark.whole), "others"],
)
def test_types_are_exact_or_refused_on_two_ranks(sample):
    names = [name for name in SAMPLES[sample] if name in model_cases.every_type()]
    status, lines = lines_of("2", "", names)
    for name, line in lines.items():
        assert line.split()[1] == ("REFUSED" if name in REFUSED else "EXACT"), line
        assert REFUSED.get(name, "") in line
    assert status == 0, "\n".join(lines.values())


def test_parts_that_read_the_whole_call_are_exact_on_three_ranks():
    status, lines = lines_of("3", "dynamic,longrope", ["decoder:llama4_text", "decoder:mixtral"])
    assert status == 0, lines
    assert "exact: own, dynamic, longrope;" in lines["decoder:llama4_text"]
    assert lines["decoder:mixtral"].endswith("exact: own, router, dynamic, longrope")


def test_results_losses_and_gradients_that_are_off_are_found():
    case, *_ = model_cases.own_case("decoder:llama")
    whole, gradients = case.whole, case.gradients[None]

    def judged(off=0.0, loss=whole.loss, router=0.0, gradients=gradients):
        return model_ranks.judged(case, [{"off": off, "loss": loss, "router": router}], gradients)

    assert judged()[0] == "EXACT"
    assert judged(off=0.01 * float(whole.rows.abs().max())) == (
        "WRONG",
        "results: 1e+02 times what is allowed",
    )
    assert judged(loss=whole.loss * 1.01)[1].startswith("loss: ")
    assert judged(router=0.1)[1].startswith("loss of routers: ")
    assert judged(gradients=gradients * 1.01)[1].startswith("gradient of ")
    refused = [
        {"off": 0.0, "loss": 0.0, "router": 0.0},
        {"outcome": "REFUSED", "reason": "why", "is_of_transport": False},
    ]
    assert model_ranks.judged(case, refused, gradients) == ("REFUSED", "why")
