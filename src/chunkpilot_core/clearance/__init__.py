"""Distances of an arm to itself and to its surroundings: a plug-in is a way to compute them."""
