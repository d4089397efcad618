"""Loop kernels: loop nests over the factors, with reductions, without contractions."""
