"""Teleoperation: sources of a human's (or a scripted operator's) wishes, one file each."""
