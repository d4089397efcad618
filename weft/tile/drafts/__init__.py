"""Drafts: kernels in the making, and the steps that each op becomes in them."""
