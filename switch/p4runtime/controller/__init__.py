"""The controller of a P4Runtime device: jobs placed, kept and taken off by entries, groups and packets."""
