"""``generate`` with a cache that ranks share, compared with ``model.generate`` in one process."""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import contextile.transformers as cth
from ranks import run_ranks

SMALL = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 20},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    "Qwen3": {},
    "Gemma2": {"sliding_window": 17, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 20.0},
    "GptOss": {
        "sliding_window": 17,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "layer_types": KINDS,
    },
    "Olmo2": {},
    "Granite": {"attention_multiplier": 0.2},
    "Phi3": {},
}
NEW = 24


def make(name, **changes):
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **MODELS.get(name, {}), **changes})
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0 if parameter.dim() > 1 else 1.0, 0.2)
    model.set_attn_implementation("eager")
    return model


def prompt(length, *, seed=2):
    return torch.randint(2, 211, (1, length), generator=torch.Generator().manual_seed(seed))


def padded(lengths):
    """Prompts of these lengths, padded on the left, with their mask."""
    longest = max(lengths)
    ids, mask = torch.zeros(2, len(lengths), longest, dtype=torch.int64)
    for row, length in enumerate(lengths):
        ids[row, longest - length :], mask[row, longest - length :] = prompt(length, seed=row), 1
    return {"input_ids": ids, "attention_mask": mask}


def check(model, what, *, interleave=1, **arguments):
    """Checks that the tokens of all ranks are those of the model alone."""
    arguments = {"max_new_tokens": NEW, "do_sample": False, **arguments}
    torch.manual_seed(9)
    expected = model.generate(**arguments)
    torch.manual_seed(9)
    found = cth.generate(model, interleave=interleave, **arguments)
    assert torch.equal(found, expected), f"{what}: {found.tolist()}, alone {expected.tolist()}"
    assert model.config._attn_implementation == "eager"


def generate_greedily(names):
    for name in names:
        model = make(name)
        for length in (1, 3, 65):
            check(model, f"{name}, {length} tokens", input_ids=prompt(length))
        check(model, f"{name}, turns of 4 tokens", input_ids=prompt(65), interleave=4)
        check(model, f"{name}, padded", **padded([40, 7, 1]))


def generate_otherwise():
    model = make("Mistral")
    check(model, "sampled", input_ids=prompt(30), do_sample=True, temperature=0.8, top_k=50)
    check(model, "two of one prompt", input_ids=prompt(30), do_sample=True, num_return_sequences=2)
    check(model, "beams", num_beams=3, **padded([30, 12]))
    check(model, "a prompt in pieces", input_ids=prompt(65), prefill_chunk_size=10)
    check(
        model, "more queries than are computed at a time", input_ids=prompt(300), max_new_tokens=3
    )
    check(make("Llama").bfloat16(), "bf16", input_ids=prompt(30), max_new_tokens=4)


def go_on():
    model = make("Qwen2")
    cache = cth.ShardedCache(model, interleave=2)
    ids = torch.empty(1, 0, dtype=torch.int64)
    for turn, length in enumerate((3, 33, 1)):
        ids = torch.cat([ids, prompt(length, seed=turn)], dim=1)
        expected = model.generate(ids, max_new_tokens=8, do_sample=False)
        ids = cth.generate(model, ids, past_key_values=cache, max_new_tokens=8, do_sample=False)
        assert torch.equal(ids, expected), turn


def share_bytes():
    import torch.distributed as dist

    size = dist.get_world_size()
    for name, most in (("Llama", 200), ("Mistral", 20)):
        model = make(name)
        cache = cth.ShardedCache(model)
        length = (
            cth.generate(
                model, prompt(177), past_key_values=cache, max_new_tokens=NEW, do_sample=False
            ).shape[1]
            - 1
        )
        token_bytes = 3 * 2 * 2 * 16 * 4  # layers, keys and values, heads, dims of fp32
        of_ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(of_ranks, torch.tensor([cache.local_bytes]))
        kept = min(length, most - 1 if name == "Mistral" else length)
        assert length > 180 and sum(of_ranks).item() == kept * token_bytes, (length, of_ranks)
        assert max(of_ranks) <= -(-kept // size) * token_bytes, of_ranks
        stored = sum(
            x.untyped_storage().nbytes()
            for layer in cache.layers
            for x in (layer.keys, layer.values)
        )
        assert stored == cache.local_bytes


def differ():
    import torch.distributed as dist

    model, rank = make("Llama"), dist.get_rank()
    with pytest.raises(
        ct.InvalidArgument,
        match=r"input_ids: expected the same on every rank.*\[1, 3\] on rank 0 and \[1, 4\]",
    ):
        cth.generate(model, prompt(3 + rank))
    with pytest.raises(
        ct.InvalidArgument,
        match=r"input_ids: expected the same.*\[1, 3\] of other values on rank 1",
    ):
        cth.generate(model, prompt(3, seed=rank))
    torch.manual_seed(rank)
    with pytest.raises(
        ct.InvalidArgument,
        match=r"tokens: expected the same on every rank .*seed\).*on rank 1 at position \d",
    ):
        cth.generate(model, prompt(3), do_sample=True, max_new_tokens=50)
    for name, arguments in (
        ("interleave", {"interleave": 1 + rank}),
        ("max_new_tokens", {"max_new_tokens": 3 + rank}),
        ("eos_token_id", {"eos_token_id": [1, 2 + rank]}),
        (
            "generation_config",
            {"generation_config": transformers.GenerationConfig(max_new_tokens=3, top_k=7 + rank)},
        ),
    ):
        with pytest.raises(ct.InvalidArgument, match=f"^{name}: expected the same on every rank"):
            cth.generate(model, prompt(3), **arguments)
    caches = [cth.ShardedCache(model) for _ in range(2)]
    ids = cth.generate(
        model, prompt(3), past_key_values=caches[0], max_new_tokens=3, do_sample=False
    )
    with pytest.raises(
        ct.InvalidArgument,
        match="past_key_values, tokens: expected the same.*found 5 on rank 0 and 0",
    ):
        cth.generate(model, ids, past_key_values=caches[rank], max_new_tokens=3)
    # An error leaves nothing behind.
    check(model, "after errors", input_ids=prompt(3))


def refuse():
    model = make("Llama")
    ids = prompt(5)
    wrong = [
        ({"use_cache": False}, "use_cache, cache_implementation: expected none"),
        ({"max_time": 1.0}, "max_time: expected none"),
        (
            {"past_key_values": transformers.DynamicCache()},
            "expected a ShardedCache, found DynamicCache",
        ),
        ({"interleave": 0}, "interleave: expected at least 1"),
        ({"prompt_lookup_num_tokens": 2, "max_new_tokens": 4}, "expected tokens that stay"),
    ]
    cache = cth.ShardedCache(model)
    wrong += [
        (
            {"generation_config": transformers.GenerationConfig(max_time=1.0)},
            "max_time: expected none",
        ),
        (
            {"past_key_values": cache, "interleave": 2},
            "group, interleave: expected none beside past_key_values",
        ),
    ]
    for arguments, message in wrong:
        with pytest.raises(ct.InvalidArgument, match=message):
            cth.generate(model, ids, do_sample=False, **arguments)
    with pytest.raises(
        ct.InvalidArgument, match="contextile.transformers.generate alone, found one outside"
    ):
        model.generate(ids, past_key_values=cth.ShardedCache(model), max_new_tokens=2)
    with pytest.raises(ct.InvalidArgument, match="expected dropout 0"):
        cth.generate(make("Llama", attention_dropout=0.5).train(), ids, max_new_tokens=2)
    bloom = transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=211, hidden_size=64, n_layer=2, n_head=4)
    ).eval()
    with pytest.raises(
        ct.InvalidArgument,
        match="uses the attention interface, found a layer that attends by itself",
    ):
        cth.generate(bloom, ids, max_new_tokens=2)
    interface = sys.modules[type(model).__module__].ALL_ATTENTION_FUNCTIONS
    with (
        patch.object(type(interface), "get_interface", lambda self, name, default: default),
        pytest.raises(
            ct.InvalidArgument,
            match="uses the attention interface, found a layer that attends by itself",
        ),
    ):
        cth.generate(model, ids, max_new_tokens=2)
    mamba = transformers.MambaConfig(vocab_size=211, hidden_size=64, num_hidden_layers=2)
    with pytest.raises(ct.InvalidArgument, match="full or sliding attention, found"):
        cth.ShardedCache(mamba)
    check(model, "after errors", input_ids=ids)
    model.generation_config.cache_implementation = "dynamic"
    check(model, "a cache that the configuration asks for", input_ids=ids)


def reset():
    model = make("Llama")
    cache = cth.ShardedCache(model)
    expected = model.generate(prompt(9), max_new_tokens=8, do_sample=False)
    for turn in range(2):
        ids = cth.generate(
            model, prompt(9), past_key_values=cache, max_new_tokens=8, do_sample=False
        )
        assert torch.equal(ids, expected), turn
        cache.reset()
        assert cache.get_seq_length() == 0 and cache.local_bytes == 0


def on_four_ranks():
    generate_greedily(MODELS)
    generate_otherwise()
    share_bytes()


def on_three_ranks():
    generate_greedily(["Llama", "Mistral"])
    go_on()


def on_two_ranks():
    differ()
    refuse()
    reset()


# Starting ranks takes longer than their work.
@pytest.mark.parametrize(
    "function", [pytest.param(on_four_ranks, marks=pytest.mark.whole), on_three_ranks]
)
def test_tokens_are_those_of_one_process_and_bytes_those_of_a_share(function):
    run_ranks(function, {on_four_ranks: 4, on_three_ranks: 3}[function])


def test_ranks_that_differ_and_what_cannot_be_are_refused():
    run_ranks(on_two_ranks, 2)


def test_a_job_is_needed():
    with pytest.raises(ct.InvalidArgument, match=r"expected a torch\.distributed process group"):
        cth.generate(make("Llama"), prompt(3))
