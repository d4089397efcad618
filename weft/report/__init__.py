"""Report: pictures and pages, each one file that needs nothing else."""
