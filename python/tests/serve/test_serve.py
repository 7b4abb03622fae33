"""``contextile serve`` compared with ``transformers`` and ``tokenizers``: tokens of models with
random weights, texts as tokens."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "tests" / "serving"))
from serve_test import Server

PROGRAM = os.environ.get("CONTEXTILE_PROGRAM", str(ROOT / "build" / "contextile"))
SMALL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
EXPERTS = {"moe_intermediate_size": 40, "num_experts_per_tok": 3}
LATENT = {
    "head_dim": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 16,
    "first_k_dense_replace": 1,
}
MODELS = {
    "llama": ("Llama", {}),
    "llama3": (
        "Llama",
        {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "mistral": ("Mistral", {"sliding_window": 20}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "mixtral": (
        "Mixtral",
        {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 24},
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            **EXPERTS,
            "num_experts": 9,
            "decoder_sparse_step": 2,
            "norm_topk_prob": True,
            "num_hidden_layers": 4,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 20,
            "swiglu_limit": 1.0,
            "rope_parameters": {**YARN_ROPE, "truncate": False},
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {**EXPERTS, **LATENT, "q_lora_rank": None, "n_shared_experts": 2},
    ),
    "deepseek_v2_groups": (
        "DeepseekV2",
        {**EXPERTS, **LATENT, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **EXPERTS,
            **LATENT,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek_v3_dense": (
        "DeepseekV3",
        {**LATENT, "first_k_dense_replace": 3, "rope_interleave": False},
    ),
}
# Options of ranks: split by heads, by tokens, and by both.
LAYOUTS = [
    (1, ()),
    (3, ()),
    (2, ("--context-parallel", "2")),
    (2, ("--tensor-parallel", "2")),
    (4, ("--context-parallel", "4")),
    (4, ("--tensor-parallel", "2", "--context-parallel", "2")),
    (4, ("--tensor-parallel", "4")),
]
NEW = 40

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
CORPUS = [
    "The quick brown fox jumps over the lazy dog; the theme of there and then, it's 1234 and 56.",
    "    def f(x):\n\treturn x + 1\r\n\n\n",
    "Fünf große Bären fraßen süße Beeren. L'été, déjà vu, ça va?",
    "漢字と仮名 한국어 русский العربية ไทย 😀👩‍👩‍👧",
] * 20
PIECES = [
    *[
        " ",
        "  ",
        "     ",
        "\t",
        "\n",
        "\r\n",
        "\n\n ",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\x85",
        "\x0b",
        "\x1c",
    ],
    *[
        "the",
        "The",
        "theme",
        "fox",
        "x",
        "'s",
        "'S",
        "'LL",
        "'re",
        "it's",
        "we'll",
        "'",
        "''",
        "'ſ",
        "İ",
        "ǅ",
    ],
    *["1", "12", "1234", "56", "½", "Ⅷ", "٣٤", "²"],
    *[
        "漢字",
        "かな",
        "한국",
        "русский",
        "عربي",
        "ไทย",
        "ß",
        "é",
        "😀",
        "👩‍👩‍👧",
        "🇩🇪",
        "\u200b",
        "\ufeff",
        "𝒳",
    ],
    *["!", "...", "—", "$%&", "\\", "_", "<", "</", "\x00", "\x7f"],
    *["<s>", "</s>", "<pad>", "<s", "s>", "<0x0A>", "▁", "Ġ"],
]
TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    " a",
    "a ",
    "  a  b  ",
    "<s>",
    "<s>a",
    " <s> a",
    "a</s>b<s> c",
    "<<s>>",
    "▁a",
    *PIECES,
]


# --------------------------------------------------------------------------------------- tokenizers


def train(pre_tokenizer=None, normalizer=None, **model):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(**model))
    on_bytes = not model.get("byte_fallback")
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet() if on_bytes else []
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if on_bytes:
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        return tokenizer
    described = json.loads(tokenizer.to_str())
    vocab = described["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    return tokenizers.Tokenizer.from_str(json.dumps(described))


def split(pattern):
    return tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def gpt2(*, add_prefix_space=False):
    return train(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space))


def gpt2_space():
    return gpt2(add_prefix_space=True)


def llama3():
    tokenizer = train(split(LLAMA3_WORDS), ignore_merges=True)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def qwen2():
    return train(split(QWEN2_WORDS), tokenizers.normalizers.NFC())


def llama2():
    normalizers = tokenizers.normalizers
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = train(None, normalizer, byte_fallback=True, fuse_unk=True)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def metaspace(scheme):
    return train(
        tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False), byte_fallback=True
    )


def metaspace_first():
    return metaspace("first")


def metaspace_always():
    return metaspace("always")


# ------------------------------------------------------------------------------------------- models


def make(name):
    prefix, changes = MODELS[name]
    torch.manual_seed(5)
    model = getattr(transformers, f"{prefix}ForCausalLM")(
        getattr(transformers, f"{prefix}Config")(**{**SMALL, **changes})
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0 if parameter.dim() > 1 else 1.0, 0.2)
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, 0.0, 0.2)
    return model.float().eval()


def prompts():
    source = random.Random(3)
    return [[source.randrange(3, 310) for _ in range(length)] for length in (1, 2, 65)]


def alone(model):
    """The tokens that the model adds to each prompt, with the one that ends them."""
    outputs = [
        model.generate(torch.tensor([one]), max_new_tokens=NEW, do_sample=False, pad_token_id=0)
        for one in prompts()
    ]
    return [output[0].tolist()[len(one) :] for output, one in zip(outputs, prompts(), strict=True)]


@pytest.fixture(scope="module", autouse=True)
def served():
    torch.set_num_threads(1)  # models are small
    if not Path(PROGRAM).is_file():
        pytest.skip(f"{PROGRAM}: no program there (make build, or CONTEXTILE_PROGRAM)")
    probe = subprocess.run(
        [PROGRAM, "serve", "--port", "99999"], capture_output=True, text=True, check=False
    )
    if "not in this build" in probe.stderr:
        pytest.skip(probe.stderr.strip())


@contextlib.contextmanager
def serve(folder, *options, ranks=1):
    with Server(
        [PROGRAM, "serve", "--model", str(folder), "--ranks", str(ranks), "--port", "0", *options]
    ) as server:
        yield server
        assert server.stop() == 0


def check(folder, expected, *options, ranks):
    if "--context-parallel" in options:
        options = (*options, "--prefill-tokens", "8")
    with serve(folder, *options, ranks=ranks) as server:
        answer = server.complete(prompt=prompts(), max_tokens=NEW)
    assert answer.status == 200, answer.body
    assert answer.tokens == expected, f"{ranks} ranks, {options}"


# -------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_generate(name, tmp_path):
    model = make(name)
    model.save_pretrained(tmp_path)
    gpt2().save(str(tmp_path / "tokenizer.json"))
    expected = alone(model)
    for ranks, options in LAYOUTS:
        check(tmp_path, expected, *options, ranks=ranks)


def rewritten(folder, change):
    """Changes the tensors of a folder."""
    from safetensors.torch import load_file, save_file

    path = str(folder / "model.safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_every_stored_tensor_counts(tmp_path):
    model = make("llama")
    model.save_pretrained(tmp_path)
    gpt2().save(str(tmp_path / "tokenizer.json"))
    expected = alone(model)
    # A second matrix counts, though the configuration says that there is one.
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    check(tmp_path, expected, ranks=1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    rewritten(
        tmp_path,
        lambda tensors: tensors.update(
            {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
        ),
    )
    check(tmp_path, expected, ranks=1)
    rewritten(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    with (
        pytest.raises(RuntimeError, match="expected a tensor lm_head.weight, found none"),
        serve(tmp_path),
    ):
        pass
    for name in (
        "model.layers.0.self_attn.q_proj.scale",
        "model.layers.9.mlp.up_proj.weight",
        "adapter",
    ):
        model.save_pretrained(tmp_path)
        rewritten(tmp_path, lambda tensors, name=name: tensors.update({name: torch.ones(4)}))
        with (
            pytest.raises(RuntimeError, match=f"the tensors of the model alone, found {name}"),
            serve(tmp_path),
        ):
            pass


def test_requests_of_windowed_models_are_longer_than_their_cache(tmp_path):
    model = make("mistral")
    model.save_pretrained(tmp_path)
    gpt2().save(str(tmp_path / "tokenizer.json"))
    expected = alone(model)
    small = ("--kv-tokens", "48", "--page-size", "4", "--step-tokens", "16")
    for ranks, options in ((1, ()), (2, ("--context-parallel", "2", "--prefill-tokens", "8"))):
        with serve(tmp_path, *small, *options, ranks=ranks) as server:
            assert (
                f"a window of 20 tokens, at most {10 if ranks == 1 else 6} pages a request"
                in server.started
            )
            answer = server.complete(prompt=prompts(), max_tokens=NEW)
        assert answer.tokens == expected, f"{ranks} ranks"


def test_ends_as_generation_does(tmp_path):
    model = make("llama")
    tokens = alone(model)[2]
    last = next(i for i in range(8, NEW) if tokens[i] not in tokens[:i])
    model.generation_config.eos_token_id = [2, tokens[last]]
    model.save_pretrained(tmp_path)
    gpt2().save(str(tmp_path / "tokenizer.json"))
    expected = alone(model)
    assert expected[2] == tokens[: last + 1]
    check(tmp_path, expected, ranks=1)


def test_sampling_is_that_of_the_model_unless_a_request_says(tmp_path):
    model = make("llama")
    model.save_pretrained(tmp_path)
    gpt2().save(str(tmp_path / "tokenizer.json"))
    config = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "min_p": 0.05,
        "typical_p": 0.9,
    }

    def first(server, **given):
        asked = {
            "prompt": [1, 2, 3],
            "max_tokens": 12,
            "seed": 5,
            "return_token_ids": True,
            **given,
        }
        answer = server.ask("POST", "/v1/completions", json.dumps(asked))
        assert answer.status == 200, answer.body
        return answer.tokens

    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    with serve(tmp_path) as server:
        assert (
            "temperature 0.5, top_p 0.9, top_k 20, min_p 0.05, repetition_penalty 1.1, unless"
            in server.started
        )
        assert "also has typical_p 0.9, which the server" in server.started
        as_model = first(server)
        assert as_model == first(
            server, temperature=0.5, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1
        )
        as_protocol = first(server, temperature=1, top_p=1, top_k=-1, min_p=0, repetition_penalty=1)
    with serve(tmp_path, "--generation-config", "none") as server:
        assert "temperature 1, unless" in server.started
        assert first(server) == as_protocol != as_model
    (tmp_path / "generation_config.json").write_text(json.dumps({**config, "do_sample": False}))
    with serve(tmp_path) as server:
        assert "the likeliest token, top_p 0.9" in server.started
        assert first(server, seed=1) == first(server, seed=2)
    for key, value in [
        ("temperature", 3),
        ("temperature", "hot"),
        ("top_k", 1.5),
        ("do_sample", "no"),
    ]:
        (tmp_path / "generation_config.json").write_text(json.dumps({key: value}))
        with (
            pytest.raises(RuntimeError, match=rf"generation_config.json, {key}: expected"),
            serve(tmp_path),
        ):
            pass


def test_random_tokenizers_are_refused_or_give_the_tokens_of_the_library():
    command = [sys.executable, str(ROOT / "scripts" / "fuzz-tokenizers"), "--program", PROGRAM]
    tried = subprocess.run(
        [*command, "--files", "40", "--texts", "25"], capture_output=True, text=True, check=False
    )
    assert tried.returncode == 0, tried.stdout + tried.stderr


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("qwen2", "bfloat16"),
        ("qwen2", "float16"),
        ("gpt_oss", "bfloat16"),
        ("deepseek_v3", "bfloat16"),
    ],
)
def test_weights_of_half_precision_in_several_files(name, dtype, tmp_path):
    model = make(name).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    gpt2().save(str(tmp_path / "tokenizer.json"))
    check(tmp_path, alone(model.float()), ranks=3)


@pytest.mark.parametrize(
    "make_tokenizer", [gpt2, gpt2_space, llama3, qwen2, llama2, metaspace_first, metaspace_always]
)
def test_texts_are_cut_as_by_tokenizers(make_tokenizer, tmp_path):
    tokenizer = make_tokenizer()
    transformers.LlamaConfig(
        **{**SMALL, "num_hidden_layers": 1, "vocab_size": 1000}
    ).save_pretrained(tmp_path)
    transformers.LlamaForCausalLM(
        transformers.LlamaConfig.from_pretrained(tmp_path)
    ).save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = random.Random(4)
    texts = TEXTS + ["".join(source.choices(PIECES, k=source.randrange(2, 12))) for _ in range(300)]
    with serve(tmp_path) as server:
        answers = [server.ask("POST", "/tokenize", json.dumps({"prompt": text})) for text in texts]
        bare = server.ask(
            "POST", "/tokenize", '{"prompt": "the end", "add_special_tokens": false}'
        ).json()["tokens"]
        choice = server.complete(prompt="the", max_tokens=100, ignore_eos=True).json()["choices"][0]
    if tokenizer.decoder is not None:
        assert choice["text"] == tokenizer.decode(choice["token_ids"])
    prefix = tokenizer.encode("").ids
    assert bare == tokenizer.encode("the end", add_special_tokens=False).ids
    wrong = []
    for text, answer in zip(texts, answers, strict=True):
        # The beginning-of-text token is not put before a text that begins with it.
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        expected = plain if plain[: len(prefix)] == prefix else prefix + plain
        found = answer.json().get("tokens", answer.body)
        if found != expected:
            wrong.append(f"{text!r}: expected {expected}, found {found}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(texts)}", *sorted(wrong, key=len)[:12]])
