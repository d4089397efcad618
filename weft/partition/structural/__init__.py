"""Structural ops: control flow, calls and composites, and ops rewritten into others."""
