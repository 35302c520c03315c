"""Publishes a load until its time is over, and prints what it sent as JSON; see __main__.py."""

import argparse
import json
import sys
import time

import numpy as np
import rclpy
from rclpy.qos import qos_profile_sensor_data, QoSProfile
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image
from std_msgs.msg import String

HEIGHT, WIDTH = 240, 320
FRAMES = 30
PATIENCE_S = 60.0
DEPTH = 100
TICK_S = 0.001
SETTLE_S = 1.0


def frames() -> list[bytes]:
    """Return serialised pictures with edges and sensor noise of 2 bits: not all alike."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    made = []
    for shift in range(FRAMES):
        scene = np.stack([rows // 2, (columns + 7 * shift) // 2, (rows + columns) // 3], axis=-1)
        scene[60:120, 40 + 5 * shift : 100 + 5 * shift] += 60
        noisy = scene + random.integers(0, 4, scene.shape)
        data = noisy.astype(np.uint8).tobytes()
        image = Image(height=HEIGHT, width=WIDTH, encoding='rgb8', step=3 * WIDTH, data=data)
        made.append(bytes(serialize_message(image)))
    return made


def texts(size: int) -> list[bytes]:
    """Return serialised messages of that size, with numbers that do not repeat."""
    random = np.random.default_rng(1)
    made = []
    for _ in range(200):
        numbers = ' '.join(f'{value:.4f}' for value in random.normal(size=size // 6))
        made.append(bytes(serialize_message(String(data=numbers.ljust(size)[: size - 9]))))
    return made


def main() -> int:
    """Wait for the recorder, send, say how much."""
    parser = argparse.ArgumentParser()
    for name, kind in (
        ('seconds', float),
        ('topics', int),
        ('rate', int),
        ('size', int),
        ('cameras', int),
        ('fps', int),
    ):
        parser.add_argument(f'--{name}', type=kind, required=True)
    args = parser.parse_args()
    rclpy.init()
    node = rclpy.create_node('load')
    senders = [
        node.create_publisher(String, f'/load/text{i}', QoSProfile(depth=DEPTH))
        for i in range(args.topics)
    ]
    cameras = [
        node.create_publisher(Image, f'/load/camera{i}/image', qos_profile_sensor_data)
        for i in range(args.cameras)
    ]
    pictures, words = frames(), texts(args.size)
    end = time.monotonic() + PATIENCE_S
    while not all(sender.get_subscription_count() for sender in senders + cameras):
        if time.monotonic() > end:
            print('nobody records', file=sys.stderr)
            return 1
        time.sleep(0.05)
    time.sleep(SETTLE_S)
    print('begin', flush=True)
    begin, sent, shown = time.monotonic(), 0, 0
    while (passed := time.monotonic() - begin) < args.seconds:
        while sent < passed * args.rate:
            senders[sent % len(senders)].publish(words[sent % len(words)])
            sent += 1
        # One at a time: a driver that was late sends no burst, and two fill the shared memory.
        if cameras and shown < passed * args.fps * len(cameras):
            cameras[shown % len(cameras)].publish(pictures[shown % len(pictures)])
            shown += 1
        time.sleep(TICK_S)
    print(json.dumps({'texts': sent, 'images': shown, 'seconds': passed}), flush=True)
    sys.stdin.read()  # what is not acknowledged yet would be lost with this process
    node.destroy_node()
    rclpy.shutdown()
    return 0


if __name__ == '__main__':
    sys.exit(main())
