"""FSDP2 over a mesh of replicas and context-parallel ranks: replicas hold different documents.

torchrun --nproc-per-node=4 fsdp.py [OUT]
"""

import sys

import torch
import torch.distributed as dist
from gpt import BATCH, Gpt, Text, by_plan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import contextile as ct
from contextile.torch import DataLoader, Executor

dist.init_process_group("gloo")
torch.manual_seed(0)  # the same weights on every rank
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "cp"))
group = mesh["cp"].get_group()
executor = Executor(group)

model = Gpt(by_plan(executor))
for layer in model.layers:
    fully_shard(layer, mesh=mesh)  # shards over cp, replicates over dp
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

loader = DataLoader(
    Text(),
    cluster=ct.Cluster.from_torch(group),
    rank=executor.rank,
    strategy="dcp",
    block_size=16,
    data_parallel=mesh["dp"].size(),
    replica=mesh["dp"].get_local_rank(),
    tokens=128,
    end_step=3,
    **BATCH,
)
losses = []
for step in loader:
    executor.prepare(step.plan)
    logits = model(step.local.tokens, step.local.positions)
    token_losses = cross_entropy(logits, step.local.labels, reduction="none")
    loss = (token_losses * step.local.loss_weights).sum()  # this rank's share of the step's
    (loss * dist.get_world_size()).backward()  # FSDP averages over all ranks
    optimizer.step()
    optimizer.zero_grad()
    whole = loss.detach().clone()
    dist.all_reduce(whole)
    losses.append(whole.item())
loader.close()

parameters = {name: value.full_tensor().detach() for name, value in model.named_parameters()}
if executor.rank == 0 and len(sys.argv) > 1 and mesh["dp"].get_local_rank() == 0:
    torch.save({"losses": losses, "parameters": parameters}, sys.argv[1])
dist.destroy_process_group()
