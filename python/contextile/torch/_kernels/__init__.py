"""Kernels of attention by operators of PyTorch, on packed rows."""
