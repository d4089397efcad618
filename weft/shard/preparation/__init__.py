"""Preparation of a module for propagation: Shardy's import passes."""
