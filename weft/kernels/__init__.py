"""Kernels: what tile makes of a program's nodes, and every target's emitter takes."""
