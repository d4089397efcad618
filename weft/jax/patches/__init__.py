"""Patches: what stands in JAX's place; `weft/patches.py` lists it all."""
