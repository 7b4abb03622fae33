"""A tiny Llama and documents of random words, for the examples with Hugging Face's trainers."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0,
}  # fmt: skip

SETTINGS = {
    "max_steps": 3, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2,
    "optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 1.0, "logging_steps": 1,
    "save_strategy": "no", "report_to": "none", "use_cpu": True, "ddp_backend": "gloo",
    "disable_tqdm": True,
}  # fmt: skip


def make_model(attention="eager"):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.set_attn_implementation(attention)
    return model


def make_documents(count=24):
    random = torch.Generator().manual_seed(1)
    lengths = torch.randint(20, 70, (count,), generator=random).tolist()
    return [
        {"input_ids": torch.randint(1, 97, (length,), generator=random).tolist()}
        for length in lengths
    ]


def pad(documents):
    """A data collator: rows of equal length, padded; padding has no labels."""
    longest = max(len(document["input_ids"]) for document in documents)
    rows = [
        document["input_ids"] + [0] * (longest - len(document["input_ids"]))
        for document in documents
    ]
    ids = torch.tensor(rows)
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": torch.where(ids > 0, ids, -100),
    }


def make_tokenizer():
    """Returns a tokenizer whose words are "0" to "96"; "0" pads."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(word): word for word in range(97)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1")
