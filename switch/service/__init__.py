"""The switch as a process: its control port, its connection to a parent, and its main loop."""
