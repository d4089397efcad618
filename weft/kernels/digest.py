"""Digests of kernels, which are parts of their names."""

from __future__ import annotations

import hashlib


def content_digest(content: object) -> str:
    """A short digest of what a kernel has, the same in every process that compiles it."""
    text = repr(content)
    # Workers compare names, and the cache finds kernels by them.
    assert " object at 0x" not in text, f"a digest of an address: {text}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]
