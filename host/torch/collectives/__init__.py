"""The process group and its collectives."""
