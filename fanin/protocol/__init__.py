"""The protocol as both ends have it: packets, jobs, events, timers, control messages and their seals."""
