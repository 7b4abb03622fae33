"""Tensor parallelism of DTensors inside context parallelism, as torchtitan arranges them.

torchrun --nproc-per-node=4 tensor_parallel.py [OUT]
"""

import sys

import torch
import torch.distributed as dist
from gpt import BATCH, Gpt, Text, by_plan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy

import contextile as ct
from contextile.torch import DataLoader, Executor

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("cp", "tp"))
cp, tp = mesh["cp"], mesh["tp"]
executor = Executor(cp.get_group())  # the ranks that hold the same heads


def parallelize(model):
    """Shards heads and feed-forward over tp, parameters over cp. q, k and v are DTensors."""
    plan = dict.fromkeys("qkv", ColwiseParallel(use_local_output=False))
    plan |= {"out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, tp, plan)
        fully_shard(layer, mesh=cp)
    return fully_shard(model, mesh=cp)


model = parallelize(Gpt(by_plan(executor)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
heads = tuple(count // tp.size() for count in BATCH["heads"])  # of one rank
settings = {**BATCH, "heads": heads, "strategy": "dcp", "block_size": 16}
cluster = ct.Cluster.from_torch(cp.get_group())
loader = DataLoader(Text(), cluster=cluster, rank=executor.rank, tokens=128, end_step=3, **settings)
losses = []
for step in loader:
    executor.prepare(step.plan)
    logits = model(step.local.tokens, step.local.positions)
    token_losses = cross_entropy(logits, step.local.labels, reduction="none")
    loss = (token_losses * step.local.loss_weights).sum()
    (loss * cp.size()).backward()  # FSDP averages over cp; tp has no average
    optimizer.step()
    optimizer.zero_grad()
    whole = loss.detach().clone()
    dist.all_reduce(whole, group=cp.get_group())
    losses.append(whole.item())
loader.close()

parameters = {name: value.full_tensor().detach() for name, value in model.named_parameters()}
if dist.get_rank() == 0 and len(sys.argv) > 1:
    torch.save({"losses": losses, "parameters": parameters}, sys.argv[1])
dist.destroy_process_group()
