"""The switch as a process: its control port, its connection to a parent, its loop."""
