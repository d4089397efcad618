"""Ragged dots: products of groups of rows, whose sizes are known only when they run."""
