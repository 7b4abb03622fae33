"""Optimal plans of small batches, to judge `auto` and the lower bound by."""
