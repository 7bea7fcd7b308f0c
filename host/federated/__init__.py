"""Federated training without torch: policies, the roster that they judge by, weights in the sums (docs/federated.md)."""
