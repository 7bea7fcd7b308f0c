"""Benchmarks: each checks its results, names its ideal and measures its rivals in the same run."""
