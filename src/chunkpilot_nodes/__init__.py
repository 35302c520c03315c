"""Thin ROS 2 nodes around chunkpilot_core: one file a node."""
