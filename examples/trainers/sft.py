"""TRL's SFTTrainer with packed documents, over replicas and context-parallel ranks.

torchrun --nproc-per-node=4 sft.py [OUT]
"""

import sys
import tempfile

import torch
from datasets import Dataset
from tiny import SETTINGS, make_documents, make_model, make_tokenizer
from torch.distributed.device_mesh import init_device_mesh
from trl import SFTConfig, SFTTrainer

import contextile.transformers as cth
from contextile.torch import Executor


class Trainer(cth.TrainerMixin, SFTTrainer):
    pass


def make_trainer(kind, attention, **more):
    """Returns a trainer that packs documents into rows of 128 tokens, without padding."""
    settings = {**SETTINGS, "eval_strategy": "steps", "eval_steps": 3, "bf16": False, **more}
    args = SFTConfig(
        tempfile.mkdtemp(), packing=True, eval_packing=False, max_length=128, **settings
    )
    given = {}
    if kind is Trainer:
        mesh = init_device_mesh("cpu", (2, args.world_size // 2), mesh_dim_names=("dp", "cp"))
        given["executor"] = Executor(mesh["cp"].get_group())
        given["plan"] = {"strategy": "dcp", "block_size": 16}
    given["train_dataset"], given["eval_dataset"] = (
        Dataset.from_list(make_documents(count)) for count in (36, 8)
    )
    return kind(make_model(attention), args, processing_class=make_tokenizer(), **given)


def results_of(trainer):
    trainer.train()
    logs = trainer.state.log_history
    kinds = ("loss", "grad_norm", "eval_loss")
    values = [entry[kind] for kind in kinds for entry in logs if kind in entry]
    parameters = {name: value.detach() for name, value in trainer.model.named_parameters()}
    return {"losses": values, "parameters": parameters}


if __name__ == "__main__":
    results = results_of(make_trainer(Trainer, cth.register()))
    if torch.distributed.get_rank() == 0 and len(sys.argv) > 1:
        torch.save(results, sys.argv[1])
    torch.distributed.destroy_process_group()
