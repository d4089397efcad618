"""Contractions (matrix products): packed panels, microkernels, prologue and epilogue."""
