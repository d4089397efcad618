"""Custom calls: the op, the targets that have a meaning here, and their rules."""
