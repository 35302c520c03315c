"""Learners that make a policy better from what the robot really did: one file per method."""
