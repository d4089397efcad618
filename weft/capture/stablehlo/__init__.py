"""StableHLO: text, bytecode and modules that are given as they are."""
