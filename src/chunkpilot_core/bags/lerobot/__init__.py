"""LeRobot datasets of format v3.0, without the library: written from frames, read as episodes."""
