"""Numbers in packets: reductions, block floating point, lanes, exact elements."""
