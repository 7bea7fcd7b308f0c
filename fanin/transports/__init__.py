"""How datagrams move between a machine and its peers: the interface, the loop that drives a machine, what all share."""
