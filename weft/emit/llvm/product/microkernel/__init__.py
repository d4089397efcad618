"""Microkernels: the innermost loop of a contraction, on vectors or on AMX tiles."""
