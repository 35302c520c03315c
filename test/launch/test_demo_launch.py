"""The launch file under ROS 2's own launch; skipped only where that cannot be imported."""

from pathlib import Path
import time

import pytest

pytest.importorskip('launch_pytest')

from chunkpilot_core.launching import interpreter
import launch
from launch.launch_description_sources import (
    AnyLaunchDescriptionSource,
    get_launch_description_from_any_launch_file,
)
import launch_pytest
import rclpy

FILE = Path(__file__).resolve().parents[2] / 'launch/demo.launch.yaml'
NODES = {process.name for process in interpreter.interpret(FILE, {})}


def test_both_see_the_same_arguments():
    theirs = get_launch_description_from_any_launch_file(str(FILE)).get_launch_arguments()
    assert [argument.name for argument in theirs] == list(interpreter.declared(FILE))


@launch_pytest.fixture
def description():
    """Include the launch file as a user does."""
    source = AnyLaunchDescriptionSource(str(FILE))
    return launch.LaunchDescription(
        [launch.actions.IncludeLaunchDescription(source), launch_pytest.actions.ReadyToTest()]
    )


@pytest.mark.ros
@pytest.mark.launch(fixture=description)
def test_every_node_comes_up():
    rclpy.init()
    watcher = rclpy.create_node('watcher')
    try:
        deadline = time.monotonic() + 60.0
        while missing := NODES - set(watcher.get_node_names()):
            assert time.monotonic() < deadline, f'missing: {missing}'
            time.sleep(0.2)
    finally:
        watcher.destroy_node()
        rclpy.shutdown()
