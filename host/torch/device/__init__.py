"""Reductions of tensors in a GPU's memory: quantized, ordered and decoded on the device."""
