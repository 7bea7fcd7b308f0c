"""What carries out reductions at a worker: the native engine, or the pump over a transport."""
