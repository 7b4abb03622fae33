"""A rank's part of a batch: its positions, labels, packed rows, and the call that computes it."""
