"""Records of runs: what demo, emulator, benchmarks and compose write, and what the report draws (docs/report.md)."""
