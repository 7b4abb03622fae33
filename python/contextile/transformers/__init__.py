"""Context parallelism for any Hugging Face model that uses the attention interface, unchanged.

    import contextile as ct, contextile.transformers as cth
    from contextile.torch import Executor, local_batch

    model.set_attn_implementation(cth.register())
    executor = Executor()                                               # once
    plan = ct.plan(lengths, cluster=cluster, **cth.batch_of(model))     # every batch, on all ranks
    executor.prepare(plan)
    local = local_batch(tokens, plan=plan, rank=executor.rank)
    with cth.use(executor):
        logits = model(local.tokens[None], position_ids=local.positions[None],
        use_cache=False).logits

Documents are packed without padding, and the plan keeps them apart. Every rank holds its own
tokens, with their positions in their documents. Gradients of parameters are summed over the group,
as in data parallelism.

``cth.TrainerMixin`` does this inside ``transformers.Trainer`` and TRL's.
``cth.generate(model, input_ids, …)`` is ``model.generate`` with a cache that ranks share by tokens.
"""

from contextile.transformers._attention import register, use
from contextile.transformers._batch_of import batch_of
from contextile.transformers._generate import ShardedCache, generate
from contextile.transformers._images import image_masks, local_images
from contextile.transformers._probe import check_model
from contextile.transformers._trainer import TrainerMixin

__all__ = [
    "ShardedCache",
    "TrainerMixin",
    "batch_of",
    "check_model",
    "generate",
    "image_masks",
    "local_images",
    "register",
    "use",
]
