"""Memory planning: arena offsets, reuse, and in-place results."""
