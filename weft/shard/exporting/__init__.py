"""Exporting: the module that propagation leaves, with a sharding for every value."""
