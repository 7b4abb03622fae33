"""Models of transformers with small sizes and random weights."""

from __future__ import annotations

import torch
import transformers


def finished(model, implementation, std=0.2):
    """A model in fp32 for training, without dropout. Its matrices have weights of that deviation,
    or of a function of the parameter's name, the same in every process; None keeps them. Without an
    implementation it attends as transformers chooses."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for name, parameter in model.named_parameters() if std is not None else ():
        if parameter.dim() > 1:
            generator = torch.Generator().manual_seed(parameter.numel())
            torch.nn.init.normal_(
                parameter, std=std(name) if callable(std) else std, generator=generator
            )
    if implementation is not None:
        model.set_attn_implementation(implementation)
    return model.float().train()


def make_tiny(name, config_name, sizes, implementation=None, std=0.2):
    """A model of a class, the same in every process."""
    torch.manual_seed(5)
    return finished(
        getattr(transformers, name)(getattr(transformers, config_name)(**sizes)),
        implementation,
        std,
    )
