"""Patches: functions that replace JAX's own; `weft/patches.py` lists them."""
