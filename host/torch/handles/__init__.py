"""Handles of collectives under way: work, futures, errors, and the host memory that they use."""
