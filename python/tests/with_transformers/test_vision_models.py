"""Vision-language models as they are, on ranks, compared with one process."""

from __future__ import annotations

import pytest

import contextile as ct

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import contextile.transformers as cth
from contextile.torch import Executor, collect, dispatch, local_batch
from ranks import run_ranks
from tiny_models import make_tiny

# Tokens of documents: t is text, i a token of an image, a text that PaliGemma attends causally.
DOCUMENTS = [
    "ttt" + "i" * 16 + "t" * 10 + "i" * 16 + "a" * 12,
    "i" * 16 + "tttt" + "a" * 5,
    "a" * 9,
]
LENGTHS = [len(document) for document in DOCUMENTS]
IMAGES = [document.count("i") // 16 for document in DOCUMENTS]
KINDS = torch.tensor([[*"tia"].index(kind) for document in DOCUMENTS for kind in document])
IMAGE = 90
TEXT = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
TOWER = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_channels": 3,
}
SIGLIP = {**TOWER, "patch_size": 4, "image_size": 16, "vision_use_head": False}
QWEN = {
    "depth": 2,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 1,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
TWO_KINDS = ["sliding_attention", "full_attention"]
TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
}
MODELS = {
    "Gemma3ForConditionalGeneration": (
        "Gemma3Config",
        {
            "text_config": {**TEXT, "sliding_window": 9, "layer_types": TWO_KINDS},
            "vision_config": SIGLIP,
            "mm_tokens_per_image": 16,
            "image_token_id": IMAGE,
            "boi_token_id": 92,
            "eoi_token_id": 93,
        },
    ),
    "Gemma4ForConditionalGeneration": (
        "Gemma4Config",
        {
            "text_config": {
                **TEXT,
                "sliding_window": 9,
                "layer_types": TWO_KINDS,
                "global_head_dim": 16,
                "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": 97,
                "use_bidirectional_attention": "vision",
            },
            "vision_config": {
                **TOWER,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "patch_size": 4,
                "pooling_kernel_size": 2,
                "position_embedding_size": 16,
            },
            "audio_config": None,
            "boi_token_id": 92,
            "eoi_token_id": 93,
            "boa_token_id": 94,
            "eoa_token_index": 95,
            "image_token_id": IMAGE,
            "video_token_id": 91,
            "audio_token_id": 96,
        },
    ),
    "PaliGemmaForConditionalGeneration": (
        "PaliGemmaConfig",
        {
            "text_config": {
                **TEXT,
                "model_type": "gemma2",
                "sliding_window": 9,
                "layer_types": TWO_KINDS,
                "query_pre_attn_scalar": 8,
            },
            "vision_config": {**SIGLIP, "model_type": "siglip_vision_model"},
            "image_token_id": IMAGE,
            "projection_dim": 32,
        },
    ),
    "Qwen2VLForConditionalGeneration": (
        "Qwen2VLConfig",
        {
            "text_config": {**TEXT, "rope_parameters": MROPE},
            "vision_config": {**QWEN, "embed_dim": 16, "hidden_size": 32},
            **TOKENS,
        },
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        "Qwen2_5_VLConfig",
        {
            "text_config": {**TEXT, "rope_parameters": MROPE},
            "vision_config": {
                **QWEN,
                "hidden_size": 16,
                "intermediate_size": 24,
                "out_hidden_size": 32,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
            **TOKENS,
        },
    ),
    "Qwen3VLForConditionalGeneration": (
        "Qwen3VLConfig",
        {
            "text_config": {**TEXT, "rope_parameters": MROPE},
            "vision_config": {
                **QWEN,
                "hidden_size": 16,
                "intermediate_size": 24,
                "out_hidden_size": 32,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
            },
            **TOKENS,
        },
    ),
}


def make(name, implementation):
    return make_tiny(
        name,
        *MODELS[name],
        {"text_config": implementation} if implementation == "contextile" else implementation,
    )


def tokens_of():
    text = torch.randint(3, 90, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    return torch.where(KINDS == 1, IMAGE, text)


def pictures(name, count, seed):
    """Arguments of get_image_features for images of a document."""
    generator = torch.Generator().manual_seed(seed)
    if "Qwen" in name:  # 8 x 8 patches of 4 x 4 pixels
        return {
            "pixel_values": torch.randn(count * 64, 48, generator=generator),
            "image_grid_thw": torch.tensor([[1, 8, 8]] * count),
        }
    if "Gemma4" in name:  # 8 x 8 patches, of which the tower makes 16 tokens
        places = torch.stack(
            torch.meshgrid(torch.arange(8), torch.arange(8), indexing="xy"), -1
        ).reshape(1, 64, 2)
        return {
            "pixel_values": torch.rand(count, 64, 48, generator=generator),
            "image_position_ids": places.repeat(count, 1, 1),
        }
    return {"pixel_values": torch.randn(count, 3, 16, 16, generator=generator)}


def types_of(name):
    if "PaliGemma" in name:
        return {"token_type_ids": (KINDS == 2).long()}
    return {"token_type_ids" if "Gemma3" in name else "mm_token_type_ids": (KINDS == 1).long()}


def positions_of(name, model):
    """Positions of all documents, [tokens], or [3, tokens] of M-RoPE."""
    if "Qwen" not in name:
        return torch.cat([torch.arange(length) for length in LENGTHS])
    parts = []
    for tokens, types, count in zip(
        tokens_of().split(LENGTHS),
        types_of(name)["mm_token_type_ids"].split(LENGTHS),
        IMAGES,
        strict=True,
    ):
        grids = torch.tensor([[1, 8, 8]] * count) if count else None
        parts.append(
            model.model.get_rope_index(tokens[None], types[None].int(), image_grid_thw=grids)[0][
                :, 0
            ]
        )
    return torch.cat(parts, -1)


def alone(name, dtype=torch.float32):
    """Logits and gradients of one process: every document by itself, with its images."""
    model = make(name, "eager").to(dtype)
    parts, begin = [], 0
    positions = positions_of(name, model)
    for index, document in enumerate(tokens_of().split(LENGTHS)):
        own = slice(begin, begin + len(document))
        given = {key: value[None, own] for key, value in types_of(name).items()}
        if IMAGES[index]:
            images = pictures(name, IMAGES[index], index)
            given |= {
                key: value.to(dtype) if value.is_floating_point() else value
                for key, value in images.items()
            }
        where = positions[..., None, own]
        logits = model(
            input_ids=document[None], position_ids=where, use_cache=False, **given
        ).logits[0]
        logits.square().sum().backward()
        parts.append(logits.detach())
        begin += len(document)
    return torch.cat(parts), {key: value.grad for key, value in model.named_parameters()}


def batch_of(name, model):
    if "Qwen" in name:
        return cth.batch_of(model)
    return cth.batch_of(
        model, mask=cth.image_masks(model, LENGTHS, next(iter(types_of(name).values())))
    )


def train(names, strategy):
    import torch.distributed as dist

    executor = Executor()
    for name in names.split():
        model = make(name, cth.register())
        executor.prepare(
            ct.plans(
                LENGTHS,
                cluster=ct.Cluster.from_torch(),
                strategy=strategy,
                block_size=8,
                **batch_of(name, model),
            )
        )
        plan, rank, tokens = executor.plan, executor.rank, tokens_of()
        local = local_batch(tokens, plan=plan, rank=rank)
        positions = dispatch(positions_of(name, model), plan=plan, rank=rank, dim=-1)
        types = {
            key: dispatch(value, plan=plan, rank=rank)[None]
            for key, value in types_of(name).items()
        }
        every = [pictures(name, count, index) for index, count in enumerate(IMAGES) if count]
        features = model.get_image_features(
            **{key: torch.cat([one[key] for one in every]) for key in every[0]}, return_dict=True
        )
        images = cth.local_images(features, tokens == IMAGE, plan=plan, rank=rank)
        with cth.use(executor):
            logits = model(
                input_ids=local.tokens[None],
                position_ids=positions[..., None, :],
                use_cache=False,
                mm_encoder_outputs={"image": images},
                **types,
            ).logits[0]
            logits.square().sum().backward()
        expected, gradients = alone(name, torch.float64)
        of_one = alone(name)[1]
        error = (collect(logits, plan=plan) - expected).abs().max() / expected.abs().max()
        assert error < 1e-5, f"{name}: logits are off by {error:.2e}"
        largest = max(float(one.abs().max()) for one in gradients.values() if one is not None)
        for key, value in model.named_parameters():
            found = value.grad if value.grad is not None else torch.zeros_like(value)
            dist.all_reduce(found)
            one = gradients[key] if gradients[key] is not None else torch.zeros_like(value)
            scale = one.abs().max().clamp(min=1e-2 * largest)
            error = (found - one).abs().max() / scale
            # The tower of Gemma 4 adds up so much that one process in fp32 is off by 5.5e-6.
            rounding = 0 if of_one[key] is None else (of_one[key] - one).abs().max() / scale
            assert error < max(1e-5, 3 * rounding), (
                f"{name}: gradient of {key} is off by {error:.2e}"
            )


def test_vision_models_are_those_of_one_process():
    run_ranks(train, 3, " ".join(MODELS), "dcp", timeout=300)


def prepared(name, **changes):
    """A model, an executor of one rank that is prepared for the batch, and arguments of a call."""
    model = make(name, cth.register())
    executor = Executor(ct.inproc_group(1)[0])
    batch = {**batch_of(name, model), **changes}
    plan = ct.plan(LENGTHS, cluster="local:1x1", strategy="dcp", block_size=8, **batch)
    executor.prepare(plan)
    local = local_batch(tokens_of(), plan=plan, rank=0)
    types = {key: dispatch(value, plan=plan, rank=0)[None] for key, value in types_of(name).items()}
    return (
        model,
        executor,
        {
            "input_ids": local.tokens[None],
            "position_ids": local.positions[None],
            "use_cache": False,
            **types,
        },
    )


def test_plans_have_the_images_that_the_model_sees():
    name = "Gemma3ForConditionalGeneration"
    model, executor, arguments = prepared(name)
    with cth.use(executor):
        model(**arguments)
    # Another image, none, and a plan without images.
    other = arguments["token_type_ids"].clone()
    other[0, (other[0] == 1).nonzero()[0]] = 0
    with (
        pytest.raises(
            ct.InvalidArgument,
            match="expected one in which the model's 47 tokens of images.*found one with 48",
        ),
        cth.use(executor),
    ):
        model(**{**arguments, "token_type_ids": other})
    with (
        pytest.raises(
            ct.InvalidArgument,
            match="expected causal, as the layer|expected a window of 9, as the layer",
        ),
        cth.use(executor),
    ):
        model(**{**arguments, "token_type_ids": None})
    causal = {"full": "causal", "sliding": "sliding_window:9"}
    model, executor, arguments = prepared(name, mask=causal)
    with (
        pytest.raises(
            ct.InvalidArgument,
            match="expected one in which the model's 48 tokens of images.*found one with 0",
        ),
        cth.use(executor),
    ):
        model(**arguments)
    with cth.use(executor, check_masks=False):
        model(**arguments)


def test_images_are_merged_where_their_tokens_are():
    name = "Gemma3ForConditionalGeneration"
    model, executor, arguments = prepared(name)
    pixels = pictures(name, 3, 0)
    with (
        pytest.raises(ct.InvalidArgument, match="pixel_values: expected none inside use"),
        cth.use(executor),
    ):
        model(**arguments, **pixels)
    features = model.get_image_features(**pixels)
    with pytest.raises(ct.InvalidArgument, match="expected the features of 47 tokens, found 48"):
        cth.local_images(features, torch.arange(91) < 47, plan=executor.plan, rank=0)
    with pytest.raises(ct.InvalidArgument, match="image_mask: expected 91 truth values, found 90"):
        cth.local_images(features, torch.ones(90), plan=executor.plan, rank=0)


def test_towers_keep_their_own_attention():
    name = "Gemma3ForConditionalGeneration"
    model, executor, arguments = prepared(name)
    model.set_attn_implementation(cth.register())
    with (
        pytest.raises(
            ct.InvalidArgument, match="found SiglipAttention of another part.*text_config"
        ),
        cth.use(executor),
    ):
        model(**arguments, **pictures(name, 3, 0))


def test_positions_of_three_axes_are_those_of_the_plan():
    model, executor, arguments = prepared("Qwen2VLForConditionalGeneration")
    positions = positions_of("Qwen2VL", model)
    other = ct.plan([91], cluster="local:1x1", strategy="dcp", **cth.batch_of(model))
    for plan, is_right in ((executor.plan, True), (other, False)):
        arguments["position_ids"] = dispatch(positions, plan=plan, rank=0, dim=-1)[:, None]
        if is_right:
            with cth.use(executor):
                model(**arguments)
            continue
        with (
            pytest.raises(ct.InvalidArgument, match="expected position_ids of the plan"),
            cth.use(executor),
        ):
            model(**arguments)


def test_image_masks_say_what_they_cannot_make():
    with pytest.raises(
        ct.InvalidArgument, match="expected one in which the tokens of an image.*found qwen2_vl"
    ):
        cth.image_masks(make("Qwen2VLForConditionalGeneration", "eager"), LENGTHS, KINDS)
    gemma = make("Gemma3ForConditionalGeneration", "eager")
    with pytest.raises(ct.InvalidArgument, match="token_type_ids: expected 91 numbers, found 3"):
        cth.image_masks(gemma, LENGTHS, [0, 1, 1])
    with pytest.raises(
        ct.InvalidArgument, match="expected token_type_ids or block_ids, found both or none"
    ):
        cth.image_masks(gemma, LENGTHS)
    gemma4 = make("Gemma4ForConditionalGeneration", "eager")
    gemma4.config.text_config.use_bidirectional_attention = None
    with pytest.raises(
        ct.InvalidArgument,
        match="expected one in which the tokens of an image attend both ways, found causal",
    ):
        cth.image_masks(gemma4, LENGTHS, KINDS)
    ids = torch.where(KINDS == 1, 0, -1)
    assert (
        cth.image_masks(gemma, [91], block_ids=ids)["full"][0].num_pairs
        == 91 * 92 // 2 + 48 * 47 // 2
    )
