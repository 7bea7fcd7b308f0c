"""Codecs: how tensors become what a switch can add, and sums of them tensors again. docs/codecs.md has them all."""
