"""Native functions in a typed subset of Python, over records that both sides read."""
