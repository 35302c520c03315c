"""
Arm the guard and move the arm home: what `ros2 service call` does, for the PyPI wheels.

    python examples/arm_and_home.py

The graph has to run (`chunkpilot up ...`). Stops at the first refusal and prints its reason.
"""

from chunkpilot.srv import GuardCommand, MoveTo
import rclpy

CALLS = (
    (GuardCommand, 'guard/arm', GuardCommand.Request(source='arm_and_home')),
    (MoveTo, 'guard/move_to', MoveTo.Request()),  # no joints = the robot's home pose
)


def main() -> None:
    rclpy.init()
    node = rclpy.create_node('arm_and_home')
    for kind, name, request in CALLS:
        client = node.create_client(kind, name)
        if not client.wait_for_service(timeout_sec=5.0):
            raise SystemExit(f'{name}: not there; is the graph running?')
        future = client.call_async(request)
        rclpy.spin_until_future_complete(node, future, timeout_sec=5.0)
        if not future.done():
            raise SystemExit(f'{name}: no answer within 5 s')
        print(f'{name}: {future.result().message}')
        if not future.result().success:
            raise SystemExit(1)
    node.destroy_node()
    rclpy.shutdown()


if __name__ == '__main__':
    main()
