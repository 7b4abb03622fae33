"""ct.advise: lengths and set-ups from the files that people have, the answer, what is refused."""

import json

import pytest

import contextile as ct

LENGTHS = [30_000, *([700, 2_500, 90, 12_000] * 40)]
QUICK = {"gpus": "8xh100", "seconds": 0, "step_tokens": 262_144, "best": 2}
MEGATRON = (
    "--context-parallel-size 8 --seq-length 32768 --micro-batch-size 1 --global-batch-size 8 "
    "--use-distributed-optimizer --lr 1e-4"
)


def test_the_answer_has_set_ups_flags_and_a_small_view():
    advice = ct.advise(LENGTHS, now=MEGATRON, engine="megatron", price=2.0, **QUICK)
    answer = advice.to_dict()
    assert answer["now"]["cp"] == 8
    assert len(advice.engines) == len(answer["engines"]) == 2
    best = answer["engines"][0]
    assert best["gain"] == pytest.approx(best["tokens_per_s"] / answer["now"]["tokens_per_s"])
    assert f"--context-parallel-size {best['cp']}" in advice.flags("megatron")
    assert advice.flags("megatron") in str(advice)
    assert answer["verdict"] in repr(advice)
    assert len(advice._repr_html_()) < 60_000
    assert all(one.strategy or one.packing == "wlb" for one in advice.own)


def test_set_ups_are_read_from_the_engines_files(tmp_path):
    files = {
        "job.toml": "[parallelism]\ncontext_parallel_degree = 8\n[training]\nseq_len = 32768\n"
        '[activation_checkpoint]\nmode = "full"\n',
        "accelerate.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
        "parallelism_config:\n  parallelism_config_cp_size: 8\n",
        "bridge.yml": "model:\n  context_parallel_size: 8\ndataset:\n  seq_length: 32768\n",
        "run.sh": f"torchrun --nproc_per_node 8 pretrain_gpt.py {MEGATRON}\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text)
        advice = ct.advise(LENGTHS, now=path, **{**QUICK, "best": 1})
        assert advice.to_dict()["now"]["cp"] == 8, name


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "folder"])
def test_lengths_are_read_from_tables(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {"length": LENGTHS, "input_ids": [[0] * (length // 100 + 1) for length in LENGTHS]}
    )
    path = tmp_path / f"data.{'parquet' if kind == 'parquet' else 'arrow'}"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        make = pyarrow.ipc.new_stream if kind in ("stream", "folder") else pyarrow.ipc.new_file
        with make(str(path), table.schema) as writer:
            writer.write_table(table)
    source = tmp_path if kind == "folder" else path
    options = {**QUICK, "best": 1}
    assert ct.advise(source, **options).to_dict() == ct.advise(LENGTHS, **options).to_dict()
    tokens = ct.advise(source, length_column="input_ids", **options).to_dict()
    assert tokens["documents"] == len(LENGTHS)
    with pytest.raises(ct.InvalidArgument, match="column 'size' in .*, found length, input_ids"):
        ct.advise(source, length_column="size", **options)


def test_lengths_are_read_from_lines(tmp_path):
    path = tmp_path / "lengths.jsonl"
    path.write_text("".join(f'{{"size": {length}}}\n' for length in LENGTHS))
    found = ct.advise(path, length_column="size", **QUICK)
    assert found.to_dict() == ct.advise(LENGTHS, **QUICK).to_dict()


def test_config_files_and_masks_decide(tmp_path):
    config = {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain = ct.advise(LENGTHS, model=f"{tmp_path}/", **QUICK).to_dict()
    short = ct.advise(LENGTHS, model=f"{tmp_path}/", mask="sliding_window:128", **QUICK).to_dict()
    assert short["engines"][0]["tokens_per_s"] > plain["engines"][0]["tokens_per_s"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"now": "--context-paralel-size 8"}, "--context-paralel-size.*did you mean"),
        ({"now": f"{MEGATRON} --num-layers 80"}, "expected layers 32.*found 80"),
        ({"measured_s": 3.0}, "measured_s: expected now"),
        ({"now": MEGATRON, "measured_s": 1e-6}, "measured step: expected "),
        ({"gpus": "9xh100"}, "whole nodes of 8 devices"),
        ({"mask": "causl"}, "did you mean 'causal'"),
        ({"plans": ["zigzga"]}, "did you mean 'zigzag'"),
        ({"engine": "megatorn"}, "did you mean 'megatron'"),
        ({"seconds": float("nan")}, "seconds of at least 0"),
        ({"step_tokens": 5}, "a multiple of"),
    ],
)
def test_bad_input_has_one_error(options, message):
    with pytest.raises(ct.InvalidArgument, match=message):
        ct.advise(LENGTHS, **{**QUICK, **options})


def test_files_that_are_not_there_are_named():
    with pytest.raises(ct.IoError, match=r"missing\.toml"):
        ct.advise(LENGTHS, now="missing.toml", **QUICK)
    with pytest.raises(ct.Error, match="data"):
        ct.advise("no-such-data.parquet", **QUICK)
