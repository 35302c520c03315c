"""Checks between a policy's wish and the robot, in the order of the guardrail specification."""
