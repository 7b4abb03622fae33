"""Plans that are prepared and executed: executors, checkpoints, tensors of several devices, errors
on all ranks.
"""
