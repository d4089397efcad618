"""Blocking: the blocks of a product for registers, caches and tasks."""
