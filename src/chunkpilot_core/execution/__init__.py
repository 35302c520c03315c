"""Execution strategies: how many rows of a chunk run before the next one."""
