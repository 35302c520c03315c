"""
Runs ROS 2 launch files (the YAML kind, the part of it that these files use) without ROS's own
launch.
"""
