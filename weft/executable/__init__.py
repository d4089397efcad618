"""Executables: what a program becomes, as data that is printed, saved, sent and run."""
