"""Models of transformers with small sizes and random weights."""

from __future__ import annotations

import torch
import transformers


def make_tiny(name, config_name, sizes):
    """A model of a class, the same in every process."""
    torch.manual_seed(5)
    model = getattr(transformers, name)(getattr(transformers, config_name)(**sizes)).float().train()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    return model
