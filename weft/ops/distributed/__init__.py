"""Ops of several devices: collectives, pieces of a local program, Shardy's annotations."""
