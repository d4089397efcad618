"""Buffers: devices and memories, sharded arrays behind buffers, and transfers."""
