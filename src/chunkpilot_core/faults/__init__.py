"""Faults on purpose, of streams of messages and of processes: what the guard has to stand."""
