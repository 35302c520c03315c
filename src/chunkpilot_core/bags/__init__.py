"""Bags: rosbag2 folders (metadata version 9, MCAP) written and read without ROS."""
