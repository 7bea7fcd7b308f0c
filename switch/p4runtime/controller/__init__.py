"""The controller of a P4Runtime device: it runs jobs by table entries, multicast groups and packets."""
