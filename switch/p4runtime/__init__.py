"""P4Runtime, both ends: a server over the emulator, and the way to any P4Runtime device. Needs `fanin[p4]`."""
