"""Propagation: the graph of a module, and the fixed point of shardings on it."""
