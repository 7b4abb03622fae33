"""DDP with gradient accumulation: two micro-batches per step and replica.

torchrun --nproc-per-node=4 ddp.py [OUT]
"""

import contextlib
import sys

import torch
import torch.distributed as dist
from gpt import BATCH, Gpt, Text, by_plan
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import contextile as ct
from contextile.torch import DataLoader, Executor

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "cp"))
group = mesh["cp"].get_group()
executor = Executor(group)
model = DistributedDataParallel(Gpt(by_plan(executor)))  # over all ranks
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

loader = DataLoader(
    Text(),
    cluster=ct.Cluster.from_torch(group),
    rank=executor.rank,
    strategy="dcp",
    block_size=16,
    data_parallel=mesh["dp"].size(),
    replica=mesh["dp"].get_local_rank(),
    micro_batches=2,
    tokens=128,
    end_step=3,
    **BATCH,
)
losses, loss_of_step = [], torch.zeros(())
for step in loader:
    executor.prepare(step.plan)
    with contextlib.nullcontext() if step.is_last else model.no_sync():
        logits = model(step.local.tokens, step.local.positions)
        token_losses = cross_entropy(logits, step.local.labels, reduction="none")
        # Weights are those of the mean over the whole step: all micro-batches, replicas and ranks.
        loss = (token_losses * step.local.loss_weights).sum()
        (loss * dist.get_world_size()).backward()  # DDP averages over all ranks
    loss_of_step += loss.detach()
    if step.is_last:
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss_of_step)
        losses.append(loss_of_step.item())
        loss_of_step.zero_()
loader.close()

if dist.get_rank() == 0 and len(sys.argv) > 1:
    torch.save({"losses": losses, "parameters": model.module.state_dict()}, sys.argv[1])
dist.destroy_process_group()
