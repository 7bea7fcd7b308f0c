"""P4Runtime, both ends: a server for the emulator, and a client for any P4Runtime device. Needs `fanin[p4]`."""
