"""What the robot is to do: one file per task."""
