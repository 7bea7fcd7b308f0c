"""The worker machine: operations, items, recovery, membership. No socket, no clock, no thread."""
