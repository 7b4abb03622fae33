"""LoRA adapters of peft, trained by the Trainer of transformers with context parallelism.

torchrun --nproc-per-node=2 lora.py [OUT]
"""

import sys
import tempfile

import torch
import transformers
from peft import LoraConfig, get_peft_model
from tiny import SETTINGS, make_documents, make_model, pad

import contextile.transformers as cth
from contextile.torch import Executor


class Trainer(cth.TrainerMixin, transformers.Trainer):
    pass


def make_adapted(attention):
    model = make_model(attention)
    # Random adapters, because new ones have gradients of 0.
    return get_peft_model(
        model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )


def make_trainer(kind, attention, **more):
    args = transformers.TrainingArguments(tempfile.mkdtemp(), **{**SETTINGS, **more})
    given = (
        {"executor": Executor(), "plan": {"strategy": "dcp", "block_size": 16}}
        if kind is Trainer
        else {}
    )
    return kind(
        make_adapted(attention), args, data_collator=pad, train_dataset=make_documents(), **given
    )


def results_of(trainer):
    trainer.train()
    adapters = {
        name: value.detach()
        for name, value in trainer.model.named_parameters()
        if value.requires_grad
    }
    return {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "parameters": adapters,
    }


if __name__ == "__main__":
    results = results_of(make_trainer(Trainer, cth.register()))
    if torch.distributed.get_rank() == 0 and len(sys.argv) > 1:
        torch.save(results, sys.argv[1])
    torch.distributed.destroy_process_group()
