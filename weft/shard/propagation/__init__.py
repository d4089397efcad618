"""Propagation: the graph of a module, and the spread of shardings along it."""
