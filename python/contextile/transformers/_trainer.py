"""Context parallelism inside the Trainer of ``transformers`` and those derived from it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contextile import _checks, _core
from contextile.torch import Executor
from contextile.transformers._attention import use
from contextile.transformers._collated import IGNORED, Share, Shares
from contextile.transformers._extent import noise_of
from contextile.transformers._probe import check_once, pretrained_in

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object  # the trainer comes after the mixin in the list of bases


def _check_group(executor: Executor) -> None:
    """Raises unless the ranks of the executor are neighbours, as data is dealt."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return  # one process
    size, world = executor.size, dist.get_world_size()
    ranks = (
        list(range(size))
        if executor.group is None
        else dist.get_process_group_ranks(executor.group)
    )
    if ranks != list(range(ranks[0], ranks[0] + size)) or ranks[0] % size != 0 or world % size != 0:
        raise _core.InvalidArgument(
            f"executor: expected a group of {size} neighbouring ranks that begins at a multiple of "
            f"{size}, out of ranks that groups of {size} divide, found ranks {ranks} of {world}: a "
            "device mesh (dp, cp) makes such groups"
        )


def _found_in(trainer: Any) -> Iterator[tuple[str, Any, str]]:
    """Yields the settings that would make training wrong: name, value, what to do."""
    args = trainer.args
    config = getattr(trainer.accelerator, "parallelism_config", None)
    for name in ("cp_size", "sp_size", "tp_size"):
        if getattr(config, name, 1) > 1:
            yield (
                f"parallelism_config.{name}",
                getattr(config, name),
                "leave it at 1: the executor's group shares sequences",
            )
    if trainer.is_deepspeed_enabled:
        yield "deepspeed", args.deepspeed, "use FSDP or DDP"
    if args.n_gpu > 1:
        yield "n_gpu", args.n_gpu, "start one process per GPU (torchrun)"
    if trainer.compute_loss_func is not None:
        yield (
            "compute_loss_func",
            trainer.compute_loss_func,
            "it would see the tokens of one rank; override compute_loss",
        )
    if trainer.compute_metrics is not None:
        yield "compute_metrics", trainer.compute_metrics, "it would see the logits of one rank"
    if args.label_smoothing_factor != 0:
        yield (
            "label_smoothing_factor",
            args.label_smoothing_factor,
            "it would shift labels by the tokens of one rank",
        )
    if not args.average_tokens_across_devices:
        yield (
            "average_tokens_across_devices",
            False,
            "ranks have different numbers of labels, so weigh them over all ranks",
        )
    if not trainer.model_accepts_loss_kwargs:
        yield (
            "model",
            type(trainer.model).__name__,
            "it has to take num_items_in_batch and shift_labels for its loss",
        )
    if getattr(args, "train_sampling_strategy", "") == "batch_rebalance":
        yield (
            "train_sampling_strategy",
            "batch_rebalance",
            "it deals to all ranks as if each had a batch of its own",
        )
    if args.accelerator_config.dispatch_batches or (
        args.accelerator_config.dispatch_batches is None
        and isinstance(trainer.train_dataset, torch.utils.data.IterableDataset)
    ):
        yield (
            "accelerator_config.dispatch_batches",
            args.accelerator_config.dispatch_batches,
            "set it to False",
        )


class TrainerMixin(_Base):
    """Makes a ``transformers.Trainer``, or a class derived from it, train with context parallelism.

    Put it before the trainer in the list of bases. The ranks of the executor's group get the same
    batches, and each trains on its part of their tokens; groups get different batches, as ranks do
    in data parallelism. A step is that of a run without context parallelism in which each group is
    one process: the same batches in the same order, the same loss, the same gradients.

    Rows of a batch are packed: padding is dropped (``attention_mask``), and a row that holds
    several documents is taken apart where ``position_ids`` begin at 0. Each rank plans each batch
    when it takes it; a batch whose documents have the lengths of a recent one reuses its plan. The
    model's attention implementation must be ``contextile.transformers.register()``.

    Parameters
    ----------
    *args, **kwargs
        As for the trainer.
    executor : Executor
        The executor of this rank's context-parallel group. Groups are neighbouring ranks, as in a
        device mesh ``("dp", "cp")``.
    plan : dict, optional
        Arguments of ``contextile.plan`` other than those that ``batch_of(model)`` finds:
        ``{"strategy": "dcp", "block_size": 256}``. Default: ``{"strategy": "auto:steps=100000"}``.
        Plans must be equal on all ranks, so strategies with a time budget are refused in the first
        step. The cluster is ``Cluster.from_torch(executor.group)``.
    check_model : bool
        As for ``contextile.transformers.use``.

    Raises
    ------
    InvalidArgument
        On construction, if a setting would make training wrong, by name: context, sequence or
        tensor parallelism of accelerate, DeepSpeed, ``compute_loss_func``, ``compute_metrics``,
        label smoothing, ``average_tokens_across_devices=False``, ``batch_rebalance``, batches that
        one process dispatches, or a group whose ranks are not neighbours; or if the model lets
        tokens see each other outside attention (``check_model``). In a step, if ranks of a group
        got different batches, if a batch has inputs that cannot be shared out by tokens, or if the
        model does not fit (``contextile.transformers.use``).

    Notes
    -----
    ``per_device_train_batch_size`` counts the rows of a group, not of a rank. Loss, ``grad_norm``
    and numbers of tokens in logs are those of the whole step. Losses of routers
    (``output_router_logits``) are those of the group's batch. Noise (``neftune_noise_alpha``)
    scales with the tokens of a row, padding included, as without context parallelism, though it is
    other noise. Attention dropout is drawn from ``args.seed``, the step and the tokens. Evaluation
    returns the loss; ``predict`` is refused, because logits stay on the ranks that hold the tokens.
    The last batches of an epoch are filled with rows that repeat, as accelerate does for ranks
    (``even_batches``).

    Examples
    --------
    ::

        class Trainer(cth.TrainerMixin, transformers.Trainer):
            pass

        model.set_attn_implementation(cth.register())
        trainer = Trainer(model, args, train_dataset=dataset,
                          executor=Executor(mesh["cp"].get_group()),
                          plan={"strategy": "dcp", "block_size": 256})
        trainer.train()
    """

    def __init__(
        self,
        *args: Any,
        executor: Executor,
        plan: dict[str, Any] | None = None,
        check_model: bool = True,
        **kwargs: Any,
    ) -> None:
        _check_group(executor)
        self._executor = executor
        self._checks_model = _checks.flag("check_model", check_model)
        super().__init__(*args, **kwargs)
        me: Any = self
        for name, value, remedy in _found_in(me):
            raise _core.InvalidArgument(
                f"trainer: expected no {name} with context parallelism, found {value!r:.80}; "
                f"{remedy}"
            )
        model = pretrained_in(me.model)
        if self._checks_model and model is not None:
            check_once(model)
        options = dict(plan or {"strategy": "auto:steps=100000"})
        if me.args.bf16 or me.args.fp16:  # autocast's dtype
            options.setdefault("dtype", torch.bfloat16 if me.args.bf16 else torch.float16)
        self._shares = Shares(executor, options)
        self._replicas = me.accelerator.num_processes // executor.size
        self._dealt_over: Any = None
        self._micro_batch = (-1, 0)  # the step, and the number of the micro-batch in it
        if executor.size > 1:
            # accelerate deals batches by a mesh with these names.
            from torch.distributed.device_mesh import init_device_mesh

            self._dealt_over = init_device_mesh(
                me.accelerator.device.type,
                (self._replicas, executor.size),
                mesh_dim_names=("dp_replicate", "cp"),
            )

    # -------------------------------------------------------------------------------------------
    # data

    @contextlib.contextmanager
    def _dealing(self) -> Iterator[None]:
        """Lets accelerate deal batches to groups instead of ranks, inside ``with``."""
        state = self.accelerator.state
        before = state.device_mesh
        state.device_mesh = before if self._dealt_over is None else self._dealt_over
        try:
            yield
        finally:
            state.device_mesh = before

    def get_train_dataloader(self) -> Any:
        """Returns the loader of this rank's group."""
        with self._dealing():
            return super().get_train_dataloader()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Returns the loader of this rank's group."""
        with self._dealing():
            return super().get_eval_dataloader(eval_dataset)

    def get_total_train_batch_size(self, args: Any) -> int:
        """Returns the number of rows of a step: per device, times accumulation, times groups."""
        rows: int = super().get_total_train_batch_size(args)
        return rows // self._executor.size

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        """Returns this rank's shares of the next batches, and the number of labels of the step."""
        shares = (self._share_of(inputs) for inputs in epoch_iterator)
        return super().get_batch_samples(shares, num_batches, device)

    def _share_of(self, inputs: Any) -> Share:
        me: Any = self
        return inputs if isinstance(inputs, Share) else self._shares.of(inputs, me.model)

    # ------------------------------------------------------------------------------------------
    # steps

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Runs forward and backward on this rank's share of a batch. Collective over the group."""
        share = self._share_of(inputs)
        self._executor.prepare(share.plan)
        noise = noise_of(model, share["input_ids"].shape[1], share.row_tokens)
        with (
            noise,
            use(self._executor, check_model=self._checks_model, dropout_seed=self._dropout_seed()),
        ):
            return super().training_step(model, share, num_items_in_batch)

    def _dropout_seed(self) -> int:
        """Returns a number for a micro-batch: that of its group on all ranks of the group."""
        me: Any = self
        step = me.state.global_step
        self._micro_batch = (step, self._micro_batch[1] + 1 if self._micro_batch[0] == step else 0)
        numbers = me.args.seed, *self._micro_batch, me.args.process_index // self._executor.size
        return int.from_bytes(
            hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little", signed=True
        )

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Returns this rank's share of the mean loss over all labels, times the number of ranks."""
        if num_items_in_batch is None:
            count = inputs["shift_labels"].ne(IGNORED).sum()
            num_items_in_batch = self.accelerator.gather(count).sum()
        return super().compute_loss(
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> Any:
        """Returns the mean loss over all labels of all groups' batches; no logits, no labels."""
        if not prediction_loss_only:
            raise _core.InvalidArgument(
                "trainer: expected evaluation of the loss alone (prediction_loss_only), found a "
                "call that needs logits, which stay on the ranks that hold the tokens"
            )
        share = self._share_of(inputs)
        self._executor.prepare(share.plan)
        with use(self._executor, check_model=self._checks_model):
            loss, _, _ = super().prediction_step(model, share, True, ignore_keys=ignore_keys)
        if loss is None:
            raise _core.InvalidArgument(
                "trainer: expected label names that the model takes as labels "
                '(TrainingArguments(label_names=["labels"])), found '
                f"{self.label_names!r:.80}, with which evaluation has no loss"
            )
        me: Any = self
        return me.accelerator.gather(loss.reshape(1)).mean(), None, None

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the trainer's loop, in which each row of a batch counts once."""
        self.gather_function = self._gather_rows
        return super().evaluation_loop(*args, **kwargs)

    def _gather_rows(self, values: Tensor) -> Tensor:
        """Gathers a value per row of a batch, once per group, without rows that repeat."""
        accelerator: Any = self.accelerator
        gathered: Tensor = (
            accelerator.gather(values).view(self._replicas, self._executor.size, -1)[:, 0].flatten()
        )
        state = accelerator.gradient_state
        return (
            gathered[: state.remainder]
            if state.end_of_dataloader and state.remainder > 0
            else gathered
        )
