"""Runs of episodes: who does what in which order, and what came of it. Without ROS."""
