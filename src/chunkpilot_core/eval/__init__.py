"""Closed-loop evaluation on a virtual clock, with the same core classes as the nodes."""
