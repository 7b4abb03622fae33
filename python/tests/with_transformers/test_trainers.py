"""The examples of trainers on ranks, compared with one process without Contextile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import contextile as ct

torch = pytest.importorskip("torch")

from torch.nn import functional

from contextile.torch import DataLoader

pytestmark = pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
EXAMPLES = Path(__file__).parents[3] / "examples" / "trainers"
WITH_ENGINE = Path(__file__).parents[1] / "support" / "with_engine.py"
sys.path.append(str(EXAMPLES))


def run_example(name, num_ranks, out, *words, engine="auto"):
    """Runs an example with torchrun. Returns the losses and parameters that it saves."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={num_ranks}",
            WITH_ENGINE,
            engine,
            EXAMPLES / f"{name}.py",
            out,
            *words,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(out)


def check_same(found, losses, parameters):
    """Fails unless losses and parameters are equal within 1e-5 of the largest value."""
    assert len(found["losses"]) == len(losses)
    for step, (mine, one) in enumerate(zip(found["losses"], losses, strict=True)):
        assert abs(mine - one) < 1e-5 * abs(one), f"step {step}: loss {mine}, in one process {one}"
    assert found["parameters"].keys() == parameters.keys()
    for name, one in parameters.items():
        error = (found["parameters"][name] - one).abs().max() / one.abs().max().clamp(min=1e-8)
        assert error < 1e-5, f"{name} is off by {error:.2e}"


def alone(*, rows_per_step, steps):
    """Losses and parameters of one process: each step takes batches of 128 tokens of Text."""
    import gpt

    def attend(q, k, v):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)

    torch.manual_seed(0)
    model = gpt.Gpt(attend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    text = gpt.Text()
    loader = DataLoader(
        text,
        cluster="local:1x1",
        rank=0,
        strategy="zigzag",
        tokens=128,
        end_step=steps * rows_per_step,
        **gpt.BATCH,
    )
    losses = []
    for step in range(steps):
        sums, count = [], 0
        for batch in range(step * rows_per_step, (step + 1) * rows_per_step):
            for piece in loader.pieces(batch):
                tokens = torch.tensor(text[piece.document])[piece.begin : piece.end]
                logits = model(tokens, torch.arange(len(tokens)))
                sums.append(functional.cross_entropy(logits[:-1], tokens[1:], reduction="sum"))
                count += len(tokens) - 1
        loss = sum(sums) / count
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "num_ranks", "batches_per_step"),
    [
        ("fsdp", 4, 2),
        pytest.param("ddp", 4, 4, marks=pytest.mark.whole),
        ("tensor_parallel", 4, 1),
    ],
)
def test_plain_pytorch_is_one_process(name, num_ranks, batches_per_step, tmp_path):
    found = run_example(name, num_ranks, tmp_path / "out.pt")
    check_same(found, *alone(rows_per_step=batches_per_step, steps=3))


def test_examples_are_short():
    for example in sorted(EXAMPLES.glob("*.py")):
        assert len(example.read_text().splitlines()) <= 60, (
            f"{example.name}: expected at most 60 lines"
        )


# -------------------------------------------------------------------------------- Hugging Face's


def needs(*names):
    for name in names:
        pytest.importorskip(name, reason=f"{name} is not installed")
    return pytest.importorskip("tiny")


def saved_values(trainer, *names):
    return [entry[name] for name in names for entry in trainer.state.log_history if name in entry]


def test_the_trainer_of_transformers_is_one_process(tmp_path):
    tiny = needs("accelerate", "transformers")
    import transformers

    settings = {**tiny.SETTINGS, "ddp_backend": None, "per_device_eval_batch_size": 4}
    args = transformers.TrainingArguments(
        tmp_path / "alone",
        gradient_accumulation_steps=4,
        eval_strategy="steps",
        eval_steps=3,
        **settings,
    )
    documents = tiny.make_documents()
    trainer = transformers.Trainer(
        tiny.make_model(),
        args,
        data_collator=tiny.pad,
        train_dataset=documents,
        eval_dataset=documents[:8],
    )
    trainer.train()
    losses = saved_values(trainer, "loss", "grad_norm", "eval_loss")
    assert len(losses) == 7
    check_same(
        run_example("hugging_face", 4, tmp_path / "out.pt"), losses, trainer.model.state_dict()
    )


def test_sft_with_packed_documents_is_one_process(tmp_path):
    needs("accelerate", "transformers", "datasets", "trl")
    import sft
    from trl import SFTTrainer

    of_both = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    trainer = sft.make_trainer(SFTTrainer, "eager", ddp_backend=None, **of_both)
    assert trainer.args.activation_checkpointing  # the mixin serves what backward recomputes
    one = sft.results_of(trainer)
    assert len(one["losses"]) == 7
    check_same(run_example("sft", 4, tmp_path / "out.pt", engine="torch"), **one)


def test_lora_adapters_are_those_of_one_process(tmp_path):
    needs("accelerate", "transformers", "peft")
    import lora
    import transformers

    one = lora.results_of(lora.make_trainer(transformers.Trainer, "eager", ddp_backend=None))
    assert len(one["losses"]) == 3 and len(one["parameters"]) == 8
    check_same(run_example("lora", 2, tmp_path / "out.pt"), **one)


def dpo_alone(policy, loss_of):
    """Losses and parameters of the steps of dpo.py in one process."""
    import dpo

    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        loss = loss_of(dpo.make_pairs(step))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "parameters": policy.state_dict()}


def plain_dpo():
    import dpo
    import tiny

    policy, reference = tiny.make_model(), tiny.make_model()

    def log_probs(model, document):
        logits = model(document[None], use_cache=False).logits[0]
        return -functional.cross_entropy(logits[29:-1], document[30:], reduction="sum")

    def loss_of(documents):
        gains = torch.stack(
            [log_probs(policy, d) - log_probs(reference, d).detach() for d in documents]
        )
        return -functional.logsigmoid(dpo.BETA * (gains[:2] - gains[2:])).mean()

    return dpo_alone(policy, loss_of)


@pytest.mark.whole
def test_dpo_steps_are_those_of_one_process(tmp_path):
    needs("transformers")
    check_same(run_example("dpo", 2, tmp_path / "out.pt"), **plain_dpo())


def test_dpo_steps_are_those_of_trl(tmp_path):
    tiny = needs("accelerate", "transformers", "datasets", "trl")
    import dpo
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    args = DPOConfig(tmp_path, beta=dpo.BETA, bf16=False, **{**tiny.SETTINGS, "ddp_backend": None})
    trainer = DPOTrainer(
        tiny.make_model(),
        tiny.make_model(),
        args,
        processing_class=tiny.make_tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": "5 6", "chosen": "7 8", "rejected": "9"}]),
    )

    def loss_of(documents):
        ids = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)
        place, lengths = (
            torch.arange(ids.shape[1])[None],
            torch.tensor([[len(document)] for document in documents]),
        )
        is_token = place < lengths
        inputs = {
            "input_ids": ids,
            "attention_mask": is_token.long(),
            "completion_mask": (is_token & (place >= 30)).long(),
        }
        return trainer.compute_loss(trainer.model, inputs)

    check_same(plain_dpo(), **dpo_alone(trainer.model, loss_of))
