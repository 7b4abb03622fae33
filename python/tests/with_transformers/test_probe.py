"""The probe of models: what of a call, outside attention, is other on a part of it."""

from __future__ import annotations

import logging

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_extent import EXTENT, ROUTERS, SMALL, make

import contextile.transformers as cth
from contextile.torch import Executor, gather_layers, local_batch
from contextile.transformers import _probe
from ranks import run_ranks
from tiny_models import make_tiny

CLASSES = transformers.LlamaForCausalLM, transformers.LlamaConfig


@pytest.mark.parametrize("name", [*EXTENT, *ROUTERS])
def test_models_that_get_the_extent_of_the_batch_pass(name):
    model = make(name, "sdpa")
    assert _probe.probe(model)[:2] == (True, "")
    found = _probe.probe(model, has_extent=False)
    expected = (
        "its loss"
        if name in ROUTERS
        else "layers.1.self_attn.o_proj"
        if name == "llama4"
        else "rotary_emb"
    )
    assert found.is_checked and expected in found.part, found


class Averaging(transformers.LlamaForCausalLM):
    """Adds the mean over the tokens of the call to every token, in a place of its own."""

    def __init__(self, config):
        super().__init__(config)
        self.lm_head.register_forward_pre_hook(
            lambda module, given: (given[0] + given[0].mean(1, keepdim=True),)
        )


class Numbering(transformers.LlamaForCausalLM):
    def forward(self, input_ids=None, position_ids=None, **others):
        return super().forward(
            input_ids, position_ids=torch.arange(input_ids.shape[1])[None], **others
        )


class MeanLoss(transformers.LlamaForCausalLM):
    def forward(
        self, input_ids=None, position_ids=None, labels=None, num_items_in_batch=None, **others
    ):
        output = super().forward(input_ids, position_ids=position_ids, **others)
        output.loss = (
            None
            if labels is None
            else self.loss_function(output.logits, labels, self.config.vocab_size, **others)
        )
        return output


class Training(Averaging):
    """Mixes tokens in training alone."""

    def __init__(self, config):
        transformers.LlamaForCausalLM.__init__(self, config)
        self.norm = torch.nn.BatchNorm1d(config.hidden_size)
        self.lm_head.register_forward_pre_hook(
            lambda module, given: (self.norm(given[0].transpose(1, 2)).transpose(1, 2),)
        )


class Gated(transformers.LlamaForCausalLM):
    """Adds a mean behind a gate that is shut at first, and returns a tensor."""

    def __init__(self, config):
        super().__init__(config)
        self.gate = torch.nn.Parameter(torch.zeros(1))

    def forward(model, *given, **named):
        logits = super().forward(*given, **named).logits
        return logits + model.gate * logits.mean(1, keepdim=True)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (Training, "first in"),
        (Gated, "first in"),
        (Averaging, "first in lm_head .Linear."),
        (Numbering, "first in model.rotary_emb"),
        (MeanLoss, "first in its loss"),
    ],
)
def test_models_of_ones_own_are_found_out(kind, part):
    model = kind(transformers.LlamaConfig(**SMALL))
    with pytest.raises(
        ct.InvalidArgument, match=f"attention alone mixes tokens, found {kind.__name__}, .*{part}"
    ):
        cth.check_model(model)


def test_layers_that_run_in_order_are_left_out_or_found():
    sizes = {
        **SMALL,
        "layer_types": ["linear_attention", "full_attention"],
        "head_dim": 8,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    }
    assert cth.check_model(make_tiny("Qwen3NextForCausalLM", "Qwen3NextConfig", sizes))
    jamba = make_tiny(
        "JambaForCausalLM",
        "JambaConfig",
        {
            **SMALL,
            "num_experts": 2,
            "attn_layer_offset": 1,
            "attn_layer_period": 2,
            "use_mamba_kernels": False,
        },
    )
    with pytest.raises(ct.InvalidArgument, match="first in model.layers.0.mamba"):
        cth.check_model(jamba)
    gather_layers(jamba, Executor(ct.inproc_group(1)[0]), names=["JambaMambaMixer"])
    assert _probe.probe(jamba)[:2] == (True, "")


def test_models_and_random_numbers_stay_as_they_are():
    model = make_tiny(*(kind.__name__ for kind in CLASSES), SMALL, "sdpa").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    assert cth.check_model(model)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_default_dtype() is dtype
    assert model.training and model.config._attn_implementation == "sdpa"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.config.hidden_size == SMALL["hidden_size"]


def test_sizes_of_real_models_are_shrunk():
    with torch.device("meta"):
        large = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=8192,
                intermediate_size=28672,
                num_hidden_layers=80,
                num_attention_heads=64,
                num_key_value_heads=8,
                rope_parameters={"rope_theta": 5e5, "rope_type": "dynamic", "factor": 8.0},
            )
        )
    assert _probe.probe(large)[:2] == (True, "")
    assert "rotary_emb" in _probe.probe(large, has_extent=False).part


class Failing(transformers.LlamaForCausalLM):
    def forward(self, input_ids=None, **others):
        raise RuntimeError("no such kernel")


class Fine(transformers.LlamaForCausalLM):
    def forward(self, input_ids=None, **named):
        return (super().forward(input_ids, **named).logits,)


def test_ordinary_subclasses_pass():
    assert cth.check_model(Fine(transformers.LlamaConfig(**SMALL)))


def test_parts_that_a_copy_has_not_are_named(caplog):
    class Norm(torch.nn.Module):
        def forward(self, rows):
            return rows - rows.mean(1, keepdim=True)

    model = make_tiny(*(kind.__name__ for kind in CLASSES), SMALL)
    with caplog.at_level(logging.WARNING, logger="contextile"):
        assert cth.check_model(model)
        assert not caplog.records
        model.model.norm = Norm()
        model.lm_head.forward = lambda rows: rows
        assert cth.check_model(torch.nn.Sequential(model))
    assert "has parts that a small copy of its class has not" in caplog.text
    assert "model.norm (Norm)" in caplog.text and "lm_head (Linear)" in caplog.text


def test_nothing_checked_is_said(caplog):
    model = Failing(transformers.LlamaConfig(**SMALL))
    with caplog.at_level(logging.WARNING, logger="contextile"):
        assert cth.check_model(model) is False
    assert (
        "no small copy of Failing runs, so nothing of it was checked (RuntimeError: no such kernel)"
        in caplog.text
    )
    with pytest.raises(
        ct.InvalidArgument, match="model: expected a PreTrainedModel of transformers, found Linear"
    ):
        cth.check_model(torch.nn.Linear(2, 2))


def test_a_class_is_tried_once(monkeypatch):
    model = make_tiny(*(kind.__name__ for kind in CLASSES), {**SMALL, "rope_theta": 12345.0})
    calls = []
    monkeypatch.setattr(_probe, "probe", lambda model: calls.append(model) or _probe.Finding(True))
    for one in (
        model,
        make_tiny(*(kind.__name__ for kind in CLASSES), {**SMALL, "rope_theta": 12345.0}),
    ):
        assert cth.check_model(one)
    assert len(calls) == 1


# -------------------------------------------------------------------------------------- inside use


def call(model, executor, is_given=True, **options):
    """Runs a model on a batch of two documents inside ``use``, as ranks do."""
    plan = ct.plan(
        [9, 14], cluster=ct.Cluster.from_torch(), strategy="zigzag", **cth.batch_of(model)
    )
    executor.prepare(plan)
    local = local_batch(torch.arange(23) % 50 + 3, plan=plan, rank=executor.rank)
    given = {"position_ids": local.positions[None]} if is_given else {}
    given |= {"labels": options.pop("labels")} if "labels" in options else {}
    with cth.use(executor, **options):
        return model(local.tokens[None], **given, use_cache=False).logits


def tried_in_use():
    executor = Executor()
    model = Averaging(transformers.LlamaConfig(**SMALL))
    model.set_attn_implementation(cth.register())
    for _ in range(2):  # all ranks raise it, each time, and the group goes on
        with pytest.raises(
            ct.InvalidArgument, match="found Averaging, .* first in lm_head .Linear."
        ):
            call(model, executor)
    assert torch.isfinite(call(model, executor, check_model=False)).all()
    # The forward of a class may have another name, and so may its model.
    with pytest.raises(ct.InvalidArgument, match="found Gated, "):
        gated = Gated(transformers.LlamaConfig(**SMALL))
        gated.set_attn_implementation(cth.register())
        call(gated, executor)
    patched = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    patched.set_attn_implementation(cth.register())
    own = type(patched).forward
    patched.forward = lambda *given, **named: own(patched, *given, **named)
    with pytest.raises(ct.InvalidArgument, match="labels: expected none inside use"):
        call(patched, executor, labels=torch.zeros(1, 1, dtype=torch.int64))
    # Copies run without the plan, also of kinds whose forward `use` replaces.
    for kind, config, sizes in (
        (
            "MixtralForCausalLM",
            "MixtralConfig",
            {
                **SMALL,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "output_router_logits": True,
                "router_aux_loss_coef": 0.1,
            },
        ),
        ("LlamaForSequenceClassification", "LlamaConfig", {**SMALL, "num_labels": 3}),
        (
            "BloomForCausalLM",
            "BloomConfig",
            {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        ),
        (
            "Qwen3NextForCausalLM",
            "Qwen3NextConfig",
            {
                **SMALL,
                "layer_types": ["linear_attention", "full_attention"],
                "head_dim": 8,
                "num_experts": 2,
                "num_experts_per_tok": 1,
            },
        ),
    ):
        model = make_tiny(kind, config, sizes, cth.register())
        alone = _probe.probe(model)
        assert alone[:2] == (True, ""), kind
        with torch.autocast("cpu", torch.bfloat16):
            assert _probe.probe(model) == alone, kind
        forward = type(model).forward
        assert torch.isfinite(call(model, executor, is_given="Bloom" not in kind)).all(), kind
        assert type(model).forward is forward, kind
        assert _probe._found[type(model), repr(model.config.to_dict())] == alone, kind


@pytest.mark.skipif(not ct.gloo_available(), reason="this build has no gloo")
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.whole), 3])
def test_models_are_tried_in_use(ranks):
    run_ranks(tried_in_use, ranks)


def test_trainers_try_their_model(tmp_path):
    pytest.importorskip("accelerate")

    class Trainer(cth.TrainerMixin, transformers.Trainer):
        pass

    class Kept(MeanLoss):
        accepts_loss_kwargs = True

    model = Kept(transformers.LlamaConfig(**SMALL))
    executor = Executor(ct.inproc_group(1)[0])
    args = transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    with pytest.raises(
        ct.InvalidArgument, match="attention alone mixes tokens, found Kept, .* first in its loss"
    ):
        Trainer(model, args, train_dataset=[], executor=executor)
    assert Trainer(model, args, train_dataset=[], executor=executor, check_model=False) is not None
    with pytest.raises(ct.InvalidArgument, match="check_model: expected"):
        Trainer(model, args, train_dataset=[], executor=executor, check_model="no")


def test_random_numbers_of_devices_stay(monkeypatch):
    model, seeded = make_tiny(*(kind.__name__ for kind in CLASSES), SMALL), []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    assert _probe.probe(model).is_checked
    assert not seeded
