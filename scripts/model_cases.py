"""Small models of the types that scripts/try-models tries, and what one process makes of them."""

import copy
import inspect
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig
from transformers.models.auto import modeling_auto as auto

from contextile.transformers._losses import shifts_labels
from contextile.transformers._small import VARIANTS, fill, shrink

MOST_PARAMETERS = 3e7
# Beyond these a model computes in another way. The longest document has 23 tokens.
THRESHOLDS = {
    "max_position_embeddings": 16,
    "original_max_position_embeddings": 8,
    "floor_scale": 4,
    "log_scaling_n_floor": 4,
    "local_attention": 10,
    "window_size": 7,
}
ROPES = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 8},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 8},
    "llama3": {
        "factor": 4.0,
        "original_max_position_embeddings": 8,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "proportional": {"factor": 4.0, "partial_rotary_factor": 0.5},
}
# Settings of RoPE that belong to a kind.
OF_KINDS = {
    "factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
    "low_freq_factor",
    "high_freq_factor",
    "type",
}
# Settings that weigh the loss of routers.
ROUTER_LOSSES = ("router_aux_loss_coef", "aux_loss_coef")
WITHOUT_LABELS = ("git",)  # types whose loss needs an image
THETA = 100.0  # small, so that all frequencies count in short documents


class TooSlow(Exception):
    """A type took too long to build."""


class Batch(NamedTuple):
    """Documents, or pairs of sources and targets."""

    lengths: tuple[int, ...]
    targets: tuple[int, ...] = ()
    is_one_call: bool = False  # of one process; otherwise each document has its own


APART = Batch((23, 9, 23))
TOGETHER = Batch((23, 23), is_one_call=True)
PAIRS = Batch((23, 9), (13, 7))
PAIRS_TOGETHER = Batch((23, 23), (13, 13), is_one_call=True)


class Result(NamedTuple):
    """Results of the batch, or a rank's part of them."""

    rows: Any  # [tokens, width]
    loss: float
    router_loss: float


class Case(NamedTuple):
    """A model with a batch, and the results of one process."""

    name: str
    model: Any
    batch: Batch
    has_router_loss: bool
    is_trained: bool  # true: with gradients
    whole: Result
    gradients: Any  # of all parameters, end to end


# ----------------------------------------------------------------------------------------- models


def every_type():
    """All types, as decoder:TYPE, encoder:TYPE and pair:TYPE."""
    decoders = sorted(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    encoders = sorted(
        {*auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, *auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES}
    )
    # Others of the list are decoders of text after audio.
    pairs = [
        kind
        for kind in sorted(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
        if AutoConfig.for_model(kind).is_encoder_decoder
    ]
    parts = {"decoder": decoders, "encoder": encoders, "pair": pairs}
    return [f"{part}:{kind}" for part, kinds in parts.items() for kind in kinds]


def class_of(name):
    part, kind = name.split(":")
    if part == "decoder":
        return transformers.AutoModelForCausalLM, kind
    if part == "pair":
        return transformers.AutoModelForSeq2SeqLM, kind
    is_masked = kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return (
        transformers.AutoModelForMaskedLM if is_masked else transformers.AutoModelForTextEncoding
    ), kind


def configurations(config):
    """A configuration and those of its parts."""
    yield config
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            yield from configurations(getattr(config, name))


def window_of(config):
    """The window of a configuration, or "" where its layers have different ones."""
    try:
        return getattr(config, "sliding_window", None)
    except Exception:
        return ""


def ropes_of(config):
    """The settings of RoPE of a configuration: one, or one for each kind of layers."""
    found = getattr(config, "rope_parameters", None)
    if not isinstance(found, dict) or not found:
        return []
    nested = [value for value in found.values() if isinstance(value, dict)]
    return nested or [found]


def set_rope(config, kind, num_pairs):
    """Sets the kind of RoPE; "" keeps the type's own."""
    for rope in ropes_of(config):
        rope["rope_theta"] = THETA
        if "partial_rotary_factor" in rope:  # of few values, RoPE turns more
            rope["partial_rotary_factor"] = max(rope["partial_rotary_factor"], 0.5)
        if kind:
            for name in rope.keys() & OF_KINDS:
                del rope[name]
            rope |= {"rope_type": kind, **ROPES.get(kind, {})}
            if kind == "longrope":
                rope |= {
                    "short_factor": [1.0] * num_pairs,
                    "long_factor": [2.0 + pair for pair in range(num_pairs)],
                }
            if config.model_type == "phimoe":
                rope |= {
                    "short_mscale": 1.0,
                    "long_mscale": 1.5,
                    "original_max_position_embeddings": 8,
                }
        if rope.get("original_max_position_embeddings"):
            rope["original_max_position_embeddings"] = THRESHOLDS[
                "original_max_position_embeddings"
            ]


def shrunk(name, variant, *, is_short=False, rope="", num_pairs=0):
    """The type's model with two layers of width 32, or as near as its configuration allows."""
    auto_class, kind = class_of(name)
    config = AutoConfig.for_model(kind)
    windows = [window_of(part) for part in configurations(config)]
    config = shrink(config, variant)
    for part, window in zip(configurations(config), windows, strict=True) if is_short else ():
        for setting, threshold in THRESHOLDS.items():
            if isinstance(getattr(part, setting, None), int) and (
                setting != "max_position_embeddings" or ropes_of(part)
            ):
                setattr(part, setting, threshold)
        set_rope(part, rope, num_pairs)
        if rope and window is None and window_of(part):
            part.sliding_window = None  # as the type has it; with a window it is tried as "own"
        for setting in (*ROUTER_LOSSES, "router_jitter_noise", "input_jitter_noise"):
            if getattr(part, setting, None) is not None:
                setattr(part, setting, 1.0 if setting in ROUTER_LOSSES else 0.0)
    torch.manual_seed(0)
    with torch.device("meta"):
        count = sum(
            parameter.numel()
            for parameter in auto_class.from_config(
                config, attn_implementation="eager"
            ).parameters()
        )
    if count > MOST_PARAMETERS:
        raise ValueError("more than 3e7 parameters")
    model = auto_class.from_config(config, attn_implementation="eager").float().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    fill(model)
    return model


def pairs_of(model):
    """Numbers of pairs that RoPE may turn, the likeliest first."""
    found = [buffer.numel() for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    return list(dict.fromkeys([*found, 4, 2, 8]))


def has_router_loss(model):
    config = model.config.get_text_config()
    return hasattr(config, "output_router_logits") and any(
        hasattr(config, name) for name in ROUTER_LOSSES
    )


# ---------------------------------------------------------------------------------------- results


def drawn(count, seed):
    return torch.randint(3, 60, (count,), generator=torch.Generator().manual_seed(seed))


def tokens_of(batch):
    return drawn(sum(batch.lengths), 1)


def targets_of(batch):
    return drawn(sum(batch.targets), 2)


def labels_of(batch):
    labels = tokens_of(batch).roll(-1)
    labels[torch.tensor(batch.lengths).cumsum(0) - 1] = -100
    return labels


def forward_of(model):
    return inspect.signature(type(model).forward).parameters


def called(model, tokens, positions, labels, count, with_router):
    """A model's output for rows of tokens. Its loss is the sum over labels, by their number."""
    given = {"input_ids": tokens, "position_ids": positions, "use_cache": False}
    if with_router:
        given["output_router_logits"] = True
    if (
        "labels" in forward_of(model)
        and shifts_labels(model)
        and model.config.model_type not in WITHOUT_LABELS
    ):
        given |= {"labels": labels, "shift_labels": labels}
    accepted = forward_of(model)
    given = {
        name: value
        for name, value in given.items()
        if name in accepted or name in ("output_router_logits", "shift_labels")
    }
    return model(**given, **({"num_items_in_batch": count} if "labels" in given else {}))


def called_pair(model, sources, targets):
    return model(input_ids=sources, decoder_input_ids=targets, use_cache=False)


def rows_of(output):
    rows = output.logits if "logits" in output else output.last_hidden_state
    return rows.reshape(-1, rows.shape[-1])


def objective(output, places):
    """The loss of rows at places of the batch: the model's own, or a weighted sum of squares."""
    if "loss" in output:
        return output.loss
    rows = rows_of(output)
    weights = torch.randn(256, rows.shape[-1], generator=torch.Generator().manual_seed(3)) / 64
    return (rows * weights[places]).square().sum()


def router_loss(output):
    found = output.get("aux_loss")
    return float(found.detach()) if isinstance(found, torch.Tensor) else 0.0


def gradients_of(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
    )


def whole_of(model, batch, with_router, is_trained):
    """(results, gradients) of one process, by a copy: RoPE keeps what it followed."""
    model = copy.deepcopy(model)
    lengths = batch.lengths
    with torch.set_grad_enabled(is_trained):
        if batch.targets:
            sides = [tokens_of(batch).split(lengths), targets_of(batch).split(batch.targets)]
            calls = (
                [[torch.stack(side) for side in sides]]
                if batch.is_one_call
                else [[x[None] for x in pair] for pair in zip(*sides, strict=True)]
            )
            outputs = [called_pair(model, *call) for call in calls]
        else:
            count = int((labels_of(batch) != -100).sum())
            positions = [torch.arange(length) for length in lengths]
            documents = zip(
                tokens_of(batch).split(lengths),
                positions,
                labels_of(batch).split(lengths),
                strict=True,
            )
            calls = [[x[None] for x in document] for document in documents]
            if batch.is_one_call:
                calls = [[torch.cat(x) for x in zip(*calls, strict=True)]]
            outputs = [called(model, *call, count, with_router) for call in calls]
        rows = torch.cat([rows_of(output) for output in outputs])
        places = torch.arange(len(rows)).split([len(rows_of(output)) for output in outputs])
        loss = sum(objective(*one) for one in zip(outputs, places, strict=True))
    if is_trained:
        loss.backward()
    if not bool(rows.isfinite().all()):
        raise ValueError("results that are not finite")
    result = Result(rows.detach(), float(loss.detach()), sum(map(router_loss, outputs)))
    return result, gradients_of(model) if is_trained else None


# ------------------------------------------------------------------------------------------ cases


def case_of(name, model, batch, *, with_router=False, is_trained=True):
    """The case of a model. It computes as in training if it draws nothing there."""
    whole, gradients = whole_of(model, batch, with_router, is_trained)
    if not torch.equal(whole_of(model, batch, with_router, False)[0].rows, whole.rows):
        model.eval()
        whole, gradients = whole_of(model, batch, with_router, is_trained)
    return Case(name, model, batch, with_router, is_trained, whole, gradients)


def first_that_works(makes):
    """The first case that can be made."""
    first = None
    for make in makes:
        try:
            return make()
        except TooSlow:
            raise
        except Exception as error:
            first = first or error
    raise first


def own_case(name):
    """The case of a type as it is, its sizes, and whether thresholds are short, of the first that
    works."""
    batch = PAIRS if name.startswith("pair:") else APART

    def make(variant, is_short):
        return lambda: (
            case_of("own", shrunk(name, variant, is_short=is_short), batch),
            variant,
            is_short,
        )

    _, variant, _ = first_that_works(make(variant, False) for variant in VARIANTS)
    return first_that_works([make(variant, True), make(variant, False)])


def cases_of(name, ropes):
    """The cases of a type, and why other settings have none."""
    own, variant, is_short = own_case(name)
    together = PAIRS_TOGETHER if name.startswith("pair:") else TOGETHER
    cases, left_out = [own], {}
    makes = {}
    if has_router_loss(own.model):
        makes["router"] = [
            lambda: case_of(
                "router", shrunk(name, variant, is_short=is_short), together, with_router=True
            )
        ]
    kinds = {
        rope.get("rope_type")
        for part in configurations(own.model.config)
        for rope in ropes_of(part)
    }
    for rope in ropes if kinds else ():
        makes[rope] = [
            lambda rope=rope, pairs=pairs: case_of(
                rope,
                shrunk(name, variant, is_short=True, rope=rope, num_pairs=pairs),
                together,
                is_trained=False,
            )
            for pairs in (pairs_of(own.model) if rope == "longrope" else [0])
        ]
    plain = None
    for setting, all_makes in makes.items():
        try:
            if plain is None:
                plain = whole_of(own.model, together, False, False)[0].rows
            case = first_that_works(all_makes)
        except TooSlow:
            raise
        except Exception as error:
            left_out[setting] = f"{type(error).__name__}: {error}"
            continue
        if setting == "router" and not case.whole.router_loss:
            left_out[setting] = "no such loss"
        elif setting in kinds | {"router"} or not torch.allclose(
            case.whole.rows, plain, rtol=0, atol=1e-5 * float(plain.abs().max())
        ):
            cases.append(case)
        else:
            left_out[setting] = "no effect"
    return cases, left_out
