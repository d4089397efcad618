"""Executables as data: blocks of launches, host nodes, collectives, loops and branches."""
