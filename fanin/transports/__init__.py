"""How datagrams move between a machine and its peers: interface, loop, addresses, captures, ZMTP."""
