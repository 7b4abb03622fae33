"""FlexAttention's masks, read as ranges of keys. It needs PyTorch."""
