"""What a program becomes: blocks of launches, host nodes, collectives, loops and branches; data."""
