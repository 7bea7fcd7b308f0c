"""Clusters in network namespaces of this machine: `fanin emulate` and `fanin bench network` (docs/emulation.md)."""
