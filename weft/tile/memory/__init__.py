"""Memory planning: offsets of buffers, reuse, and results in place of operands."""
