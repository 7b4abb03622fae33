"""Flags that the library writes, read by the parsers of the engines themselves.

An engine that is not installed skips its tests. Versions that were tried: megatron-core 0.16.1
(fields) and 0.19.2 (arguments), torchtitan 0.2.2, accelerate 1.15.0, trl 1.16.0, deepspeed 0.19.8.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shlex
import tomllib

import pytest

from contextile import _core

# A package without this binding is older than the test.
pytestmark = pytest.mark.skipif(
    not hasattr(_core, "engine_flags"), reason="contextile._core has no engine_flags"
)

TOKENS = 65536


def setups(engine):
    """Returns set-ups of many kinds that the engine can run."""
    found = []
    for tp, cp, dp, pp, exchange, recompute, optimizer, packing in itertools.product(
        (1, 2),
        (1, 4),
        (1, 2),
        (1, 2),
        ("p2p", "a2a", "all_gather", "a2a+p2p"),
        ("none", "selective", "full"),
        ("replicated", "zero1", "fsdp"),
        ("sequential", "dynamic"),
    ):
        if cp == 1 and exchange != "p2p":
            continue
        setup = _core.TrainingSetup(
            tp=tp,
            cp=cp,
            dp=dp,
            pp=pp,
            exchange=exchange,
            a2a_ranks=2 if exchange == "a2a+p2p" else 0,
            packing=packing,
            tokens=TOKENS,
            step_tokens=TOKENS * dp * 4,
            schedule="interleaved" if pp > 1 else "1f1b",
            chunks=2 if pp > 1 else 1,
            recompute=recompute,
            optimizer=optimizer,
        )
        if _core.engine_problem(setup, engine) is None:
            found.append(setup)
    assert len(found) > 5
    return found


def megatron_words(setup):
    flags, script = _core.engine_flags(setup, "megatron")
    assert script == ""
    return shlex.split(flags.replace("\\\n", " "))


def megatron_options(setup):
    """Returns the words of a set-up as {field: values}."""
    options = {}
    for word in megatron_words(setup):
        if word.startswith("--"):
            values = options.setdefault(word[2:].replace("-", "_"), [])
        else:
            values.append(word)
    return options


# ------------------------------------------------------------------------------------- Megatron

# Arguments of Megatron-LM's scripts, which are no fields of megatron-core.
OF_SCRIPTS = {
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "dataloader_type",
    "ckpt_format",
    "use_distributed_optimizer",
    "use_megatron_fsdp",
    "data_parallel_sharding_strategy",
    "no_gradient_accumulation_fusion",
    "num_virtual_stages_per_pipeline_rank",
}
# Fields of DistributedDataParallelConfig.
OF_GRADIENTS = {"overlap_grad_reduce", "overlap_param_gather"}


def test_megatron_core_has_a_field_for_every_other_argument():
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    gradients = pytest.importorskip("megatron.core.distributed").DistributedDataParallelConfig
    fields = {field.name for field in dataclasses.fields(config.TransformerConfig)}
    of_gradients = {field.name for field in dataclasses.fields(gradients)} & OF_GRADIENTS
    for setup in setups("megatron"):
        unknown = set(megatron_options(setup)) - fields - of_gradients - OF_SCRIPTS
        assert not unknown, str(setup)


def test_megatron_core_takes_the_values_of_its_fields():
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    for setup in setups("megatron"):
        given = {
            name: values
            for name, values in megatron_options(setup).items()
            if name not in OF_SCRIPTS | OF_GRADIENTS
        }
        lists = ("hierarchical_context_parallel_sizes", "recompute_modules")
        fields = {}
        for name, values in given.items():
            words = [int(value) if value.isdigit() else value for value in values]
            fields[name] = words if name in lists else (words[0] if words else True)
        made = config.TransformerConfig(
            num_layers=8, hidden_size=64, num_attention_heads=8, pipeline_dtype="bf16", **fields
        )
        assert made.context_parallel_size == setup.cp
        assert made.tensor_model_parallel_size == setup.tp
        if setup.exchange == "a2a+p2p":
            assert made.hierarchical_context_parallel_sizes == [2, 2]
        if setup.packing == "dynamic":
            assert made.max_seqlen_per_dp_cp_rank == TOKENS // setup.cp


def test_the_parser_of_megatron_lm_takes_every_argument():
    arguments = pytest.importorskip("megatron.training.arguments", exc_type=ImportError)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    for setup in setups("megatron"):
        words = megatron_words(setup)
        parsed, unknown = parser.parse_known_args(words)
        assert not unknown, words
        assert parsed.tensor_model_parallel_size == setup.tp
        assert parsed.context_parallel_size == setup.cp
        assert parsed.seq_length == TOKENS
        assert parsed.global_batch_size == 4 * setup.dp
        assert parsed.hybrid_context_parallel == (setup.packing == "dynamic")
        if setup.cp > 1:
            assert parsed.cp_comm_type == [setup.exchange]


# ------------------------------------------------------------------------------------ torchtitan


def test_the_configuration_of_torchtitan_takes_every_key(tmp_path):
    config = pytest.importorskip("torchtitan.config", exc_type=ImportError)
    if not hasattr(config, "JobConfig"):
        pytest.skip("torchtitan has no TOML from 0.3.0 on")
    path = tmp_path / "train.toml"
    for setup in setups("torchtitan"):
        text, script = _core.engine_flags(setup, "torchtitan")
        assert script == ""
        assert tomllib.loads(text)["training"]["seq_len"] == TOKENS
        path.write_text(text)
        job = config.ConfigManager().parse_args([f"--job.config_file={path}"])
        assert job.parallelism.context_parallel_degree == setup.cp
        assert job.parallelism.pipeline_parallel_degree == setup.pp
        replicate = job.parallelism.data_parallel_replicate_degree
        assert replicate * job.parallelism.data_parallel_shard_degree == setup.dp
        assert job.activation_checkpoint.mode == setup.recompute
        assert job.training.global_batch_size == 4 * setup.dp


# --------------------------------------------------------------------------- accelerate and TRL


def test_accelerate_takes_its_file(tmp_path, monkeypatch):
    launch = pytest.importorskip("accelerate.commands.launch")
    utils = pytest.importorskip("accelerate.utils.launch")
    parallelism = pytest.importorskip("accelerate.parallelism_config")
    path = tmp_path / "accelerate.yaml"
    for setup in setups("trl"):
        text, _ = _core.engine_flags(setup, "trl")
        path.write_text(text)
        parser = launch.launch_command_parser()
        args, _, _ = launch._validate_launch_command(
            parser.parse_args(["--config_file", str(path), "train.py"])
        )
        assert args.num_processes == setup.tp * setup.cp * setup.dp
        environment = utils.prepare_extend_env_parallelism_config(args, {})
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            made = parallelism.ParallelismConfig()
        assert made.total_size == args.num_processes
        assert made.tp_size == setup.tp
        a2a = setup.exchange == "a2a"
        assert (made.sp_size if a2a else made.cp_size) == setup.cp
        if setup.cp > 1 and not a2a:
            strategy = {"p2p": "alltoall", "all_gather": "allgather"}[setup.exchange]
            assert made.cp_handler.cp_comm_strategy == strategy


def test_the_trainer_of_trl_takes_its_arguments(tmp_path):
    trl = pytest.importorskip("trl")
    yaml = pytest.importorskip("yaml")
    for setup in setups("trl")[:12]:
        _, script = _core.engine_flags(setup, "trl")
        made = trl.SFTConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, **yaml.safe_load(script)
        )
        assert made.max_length == TOKENS
        assert made.packing
        assert made.gradient_accumulation_steps == 4


# ------------------------------------------------------------------------------------- DeepSpeed


def test_the_configuration_of_deepspeed_takes_its_file(monkeypatch):
    config = pytest.importorskip("deepspeed.runtime.config", exc_type=ImportError)
    for setup in setups("deepspeed"):
        flags, script = _core.engine_flags(setup, "deepspeed")
        assert f"seq_length = {TOKENS}" in script
        ranks = setup.cp * setup.dp
        monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
        monkeypatch.setattr(config.dist, "get_world_size", lambda ranks=ranks: ranks)
        made = config.DeepSpeedConfig(json.loads(flags))
        assert made.world_size == setup.dp
        assert made.zero_config.stage == {"replicated": 0, "zero1": 1, "fsdp": 3}[setup.optimizer]
        assert made.gradient_accumulation_steps == 4
        assert made.train_micro_batch_size_per_gpu == 1
