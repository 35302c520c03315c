"""Perception stages: what is done to an observation before it is published."""
