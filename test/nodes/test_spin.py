"""The supervised loop, on a real node process: faults, signals, parameters, priorities."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytest.importorskip('rclpy')
pytestmark = pytest.mark.ros

NODE = textwrap.dedent("""
    from dataclasses import dataclass
    from chunkpilot_core.config import option
    from chunkpilot_core.errors import InvalidDataError
    from std_msgs.msg import String
    from chunkpilot_nodes import params, spin

    @dataclass(frozen=True)
    class Config:
        rate_hz: float = option(100.0, 'rate', unit='Hz', min=1.0, max=1000.0)
        mode: str = option('calm', 'what to do', choices=('calm', 'rare', 'always', 'refuse'))
        names: tuple[str, ...] = option((), 'names')

    class Bad(spin.SupervisedNode):
        def __init__(self):
            super().__init__('bad')
            self.config = params.declare(self, Config)
            self.ticks = 0
            self.create_timer(1.0 / self.config.rate_hz, self.tick)
            self.sender = self.create_publisher(String, 'news', 10)
            self.create_subscription(String, 'news', self.hear, 10)
            print(self.config, flush=True)

        def hear(self, msg):
            raise InvalidDataError(f'{msg.data!r} is no news')

        def tick(self):
            self.ticks += 1
            if self.config.mode == 'refuse':
                self.sender.publish(String(data='junk'))
            if self.config.mode == 'always' or (self.config.mode == 'rare' and self.ticks == 5):
                raise ValueError('boom')

        def on_fault(self, error):
            print('safe state:', error, flush=True)

        def shutdown(self):
            print(f'ticks {self.ticks} faults {self.faults} refused {self.refused}', flush=True)

    spin.main(Bad, executor='EXECUTOR')
""")


def start(tmp_path: Path, *args: str, executor: str = 'events') -> subprocess.Popen[str]:
    file = tmp_path / 'bad_node.py'
    file.write_text(NODE.replace('EXECUTOR', executor))
    ros_args = ['--ros-args', *[word for arg in args for word in ('-p', arg)]] if args else []
    return subprocess.Popen(
        [sys.executable, str(file), *ros_args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'OFF'},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize('executor', ['events', 'single'])
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_fault_is_survived_and_a_signal_ends_cleanly(tmp_path, executor, number):
    process = start(tmp_path, 'mode:=rare', executor=executor)
    assert process.stdout is not None
    assert 'mode=' in process.stdout.readline()
    assert process.stdout.readline() == 'safe state: boom\n'
    time.sleep(0.5)
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == 0
    ticks, faults, _ = (int(word) for word in out.split()[1::2])
    assert ticks > 20
    assert faults == 1
    assert 'ValueError in a callback: boom' in err


def test_a_node_that_only_fails_gives_up_with_exit_code_1(tmp_path):
    code, out, err = finish(start(tmp_path, 'mode:=always'))
    assert code == 1
    assert 'giving up' in err
    assert 'faults 20' in out


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
        ('rate_hzz:=5.0', "unknown parameter of bad 'rate_hzz'. Did you mean 'rate_hz'?"),
        ('rate_hz:=0.5', 'rate_hz: 0.5 Hz is below the minimum 1.0 Hz'),
        ('rate_hz:=fast', "rate_hz: 'fast' is of type str, must be float"),
        ('mode:=calmly', "unknown value of mode 'calmly'. Did you mean 'calm'?"),
    ],
)
def test_a_wrong_parameter_is_one_clear_line(tmp_path, argument, message):
    code, _, err = finish(start(tmp_path, argument))
    assert code == 1
    assert message in err
    assert 'Traceback' not in err


def test_ints_for_floats_and_lists_are_taken(tmp_path):
    process = start(tmp_path, 'rate_hz:=50', "names:=['a', 'b']")
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 0
    assert 'rate_hz=50.0' in line
    assert "names=('a', 'b')" in line


@pytest.mark.parametrize('executor', ['events', 'single'])
def test_messages_that_are_refused_are_told_and_are_no_fault(tmp_path, executor):
    process = start(tmp_path, 'mode:=refuse', executor=executor)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert code == 0
    _, faults, refused = (int(word) for word in out.split()[1::2])
    assert faults == 0
    assert refused > 20
    assert "news refused: 'junk' is no news" in err
    assert err.count('is no news') < 5
    assert 'Traceback' not in err


def test_time_that_jumps_ahead_is_followed_and_runs_no_further(nodes) -> None:
    from chunkpilot_nodes import qos, spin
    from chunkpilot_nodes.convert import to_time
    import rclpy
    from rclpy.executors import SingleThreadedExecutor
    from rosgraph_msgs.msg import Clock

    sender, listener = nodes
    listener.set_parameters([rclpy.Parameter('use_sim_time', value=True)])
    clock = spin.RosTime(listener)
    publisher = sender.create_publisher(Clock, '/clock', qos.RELIABLE_10)
    executor = SingleThreadedExecutor(context=listener.context)
    executor.add_node(listener)

    def tell(stamp_ns: int) -> None:
        """Publish a time until it has arrived."""
        until = time.monotonic() + 20.0
        while listener.get_clock().now().nanoseconds != stamp_ns:
            assert time.monotonic() < until
            publisher.publish(Clock(clock=to_time(stamp_ns)))
            executor.spin_once(timeout_sec=0.05)
        clock.now_ns()

    begin_ns, period_ns = 100 * 10**9, 10**7
    for number in range(10):
        tell(begin_ns + number * period_ns)
        time.sleep(0.002)
    assert clock.now_ns() > begin_ns + 9 * period_ns, 'between two messages it runs on'
    tell(begin_ns + 20 * 10**9)
    time.sleep(0.05)
    assert clock.now_ns() == begin_ns + 20 * 10**9
    tell(begin_ns + 20 * 10**9 + period_ns)
    time.sleep(0.002)
    assert 0 < clock.now_ns() - (begin_ns + 20 * 10**9 + period_ns) <= 2 * period_ns
    executor.shutdown()
