"""Federated training without torch: policies, the roster they judge by, weights in sums (docs/federated.md)."""
