"""Sizes that vary: programs of a few sizes, which calls of other sizes are padded to."""
