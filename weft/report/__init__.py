"""Reports: pictures and pages, each one self-contained file."""
