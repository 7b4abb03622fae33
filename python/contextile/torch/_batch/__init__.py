"""A rank's part of a batch: its positions, labels and packed rows, and the call that computes it."""
