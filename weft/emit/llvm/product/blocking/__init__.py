"""Blocking: register, cache and task blocks of a contraction."""
