"""Attention inside a user's model: its replacement, the checks of the model, layers that need whole
documents.
"""
