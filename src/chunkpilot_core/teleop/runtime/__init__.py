"""What the sources of teleoperation share: steering, and the way from wishes to commands."""
