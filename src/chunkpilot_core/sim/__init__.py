"""PyBullet worlds with panda-gym's robot and tasks, cameras, and errors that a deployment has."""
