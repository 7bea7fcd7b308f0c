"""Engines that carry out a worker's reductions: the native engine, or the pump over a transport."""
