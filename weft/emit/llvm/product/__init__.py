"""Matrix products: packed panels, microkernels, what is computed before and after."""
