"""`fanin conformance`: compares another implementation of a switch with our twin, packet by packet."""
