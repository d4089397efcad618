"""Structural ops: control flow, calls and composites, and ops that others stand in for."""
