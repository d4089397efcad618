"""Preparation: a module as propagation wants it, by Shardy's import passes."""
