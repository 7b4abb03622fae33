"""Context parallelism for any Hugging Face model that uses the attention interface, as it is.

    import contextile as ct, contextile.transformers as cth
    from contextile.torch import Executor, dispatch, local_batch

    cth.register()
    model.set_attn_implementation("contextile")
    executor = Executor(group)                                          # once
    plan = ct.plan(lengths, cluster=cluster, **cth.batch_of(model))     # every batch, the same on all ranks
    executor.prepare(plan)
    local = local_batch(tokens, plan=plan, rank=executor.rank)
    with cth.use(executor):
        logits = model(local.tokens[None], position_ids=local.positions[None], use_cache=False).logits

Documents are packed without padding and told apart by the plan; every rank holds its own tokens of them, with their
positions in their documents. Gradients of parameters are summed over the group, as in any data parallelism.

``cth.generate(model, input_ids, …)`` is ``model.generate`` with a cache that ranks share by tokens.
"""

from contextile.transformers._attention import batch_of, register, use
from contextile.transformers._generate import ShardedCache, generate

__all__ = ["ShardedCache", "batch_of", "generate", "register", "use"]
