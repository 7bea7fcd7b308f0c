"""Training on top of a process group: stale, asynchronous, with changing members; communication hooks."""
