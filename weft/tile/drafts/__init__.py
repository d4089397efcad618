"""Drafts: kernels under construction, and the lowering of each op to steps."""
