"""Buffers: devices and their memories, what buffers stand for, and how values come and go."""
