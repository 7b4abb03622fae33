"""Plans run by operators of PyTorch and ``torch.distributed``, on any device."""
