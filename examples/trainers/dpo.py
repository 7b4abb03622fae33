"""Steps of DPO: log-probabilities of whole responses, summed over context-parallel ranks.

torchrun --nproc-per-node=2 dpo.py [OUT]
"""

import sys

import torch
import torch.distributed as dist
from tiny import make_model
from torch.nn.functional import logsigmoid
from torch.nn.parallel import DistributedDataParallel

import contextile as ct
import contextile.transformers as cth
from contextile.torch import Executor, document_sums, local_batch, token_log_probs

BETA = 0.5


def make_pairs(seed):
    """Two prompts of 30 tokens with chosen responses of 40, then with rejected ones of 25."""
    random = torch.Generator().manual_seed(seed)
    prompts = torch.randint(2, 97, (2, 30), generator=random)
    responses = [[torch.randint(2, 97, (n,), generator=random) for _ in prompts] for n in (40, 25)]
    return [torch.cat(pair) for kind in responses for pair in zip(prompts, kind, strict=True)]


def main():
    dist.init_process_group("gloo")
    executor, losses = Executor(), []
    policy, reference = make_model(cth.register()), make_model(cth.register()).requires_grad_(False)
    trained = DistributedDataParallel(policy)
    settings = {"cluster": ct.Cluster.from_torch(), "block_size": 16, **cth.batch_of(policy)}
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

    def response_log_probs(model, documents):
        """Log-probabilities of the responses, [documents], the same on every rank."""
        plan = ct.plan([len(document) for document in documents], strategy="dcp", **settings)
        executor.prepare(plan)
        mask = torch.cat([torch.arange(len(one)) >= 30 for one in documents])  # of responses
        local = local_batch(torch.cat(documents), plan=plan, rank=executor.rank, loss_mask=mask)
        with cth.use(executor):
            out = model(local.tokens[None], position_ids=local.positions[None], use_cache=False)
        return document_sums(token_log_probs(out.logits[0], local.labels), plan=plan)

    for documents in map(make_pairs, range(3)):
        gains = response_log_probs(trained, documents) - response_log_probs(reference, documents)
        loss = -logsigmoid(BETA * (gains[:2] - gains[2:])).mean()  # the same on every rank
        (loss * executor.size).backward()  # DDP averages; gradients of ranks are shares
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if executor.rank == 0 and len(sys.argv) > 1:
        torch.save({"losses": losses, "parameters": policy.state_dict()}, sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
