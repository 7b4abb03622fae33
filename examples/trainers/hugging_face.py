"""The Trainer of transformers, over replicas and context-parallel ranks.

torchrun --nproc-per-node=4 hugging_face.py [OUT]
"""

import sys
import tempfile

import torch
import transformers
from tiny import SETTINGS, make_documents, make_model, pad
from torch.distributed.device_mesh import init_device_mesh

import contextile.transformers as cth
from contextile.torch import Executor


class Trainer(cth.TrainerMixin, transformers.Trainer):
    pass


def main():
    args = transformers.TrainingArguments(  # begins torch.distributed
        tempfile.mkdtemp(),
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        **SETTINGS,
    )
    mesh = init_device_mesh("cpu", (2, args.world_size // 2), mesh_dim_names=("dp", "cp"))
    documents = make_documents()
    trainer = Trainer(
        make_model(cth.register()),
        args,
        data_collator=pad,
        train_dataset=documents,
        eval_dataset=documents[:8],
        executor=Executor(mesh["cp"].get_group()),
        plan={"strategy": "dcp", "block_size": 16},
    )
    trainer.train()
    if args.process_index == 0 and len(sys.argv) > 1:
        logs = trainer.state.log_history
        values = [
            entry[key]
            for key in ("loss", "grad_norm", "eval_loss")
            for entry in logs
            if key in entry
        ]
        torch.save({"losses": values, "parameters": trainer.model.state_dict()}, sys.argv[1])
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
