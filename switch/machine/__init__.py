"""The switch machine and the slot machine in it, for the switch of a job or a leaf: no socket, no clock, no thread."""
