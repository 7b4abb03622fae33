"""Tokens that change ranks: layouts of whole documents and chunks, gathers, sums, rolls."""
