"""
Measures LeRobot's asynchronous inference: its own client and its own server, over gRPC.

    python -m benchmarks.execution.measure_lerobot_async CASE.json RESULT.json

Runs in an environment where lerobot 0.4.x with its ``async`` extra imports. Both are used as
shipped and with their defaults (chunk_size_threshold 0.5, weighted_average); only the robot and
the policy are fake, and logs go to a file. The case's strategy is ``weighted_average/degrees`` or
``.../radians``: their filter of similar observations has a threshold of 1 in raw units.
"""

from concurrent import futures
from dataclasses import dataclass
import json
import os
from pathlib import Path
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from benchmarks.execution import record
from benchmarks.execution.lerobot_robot import BenchRobot, version_of_lerobot
from benchmarks.execution.reference import Case, DEGREES, FakePolicy, HZ, START

PATIENCE_S = 300.0  # its imports take a minute on a busy machine
LEAD_S = 0.5  # from the hand-shake to the begin of the run


class SlowPolicy:
    """What the server loads instead of weights: ``path`` is a JSON text with case and start."""

    config = SimpleNamespace(image_features={})
    server: Any = None

    def __init__(self, path: str) -> None:
        given = json.loads(path)
        self._case = Case(**given['case'])
        self._start_s = given['start_s']
        self._log = Path(given['log'])
        self._fake = FakePolicy(self._case, START)
        self._scale = DEGREES if self._case.strategy.endswith('degrees') else 1.0
        self._call = 0

    @classmethod
    def from_pretrained(cls, path: str) -> 'SlowPolicy':
        return cls(path)

    def to(self, device: str) -> 'SlowPolicy':
        return self

    def predict_action_chunk(self, observation: Any) -> Any:
        import torch

        began, call = time.monotonic(), self._call
        self._call += 1
        observed_s = self.server.last_processed_obs.get_timestamp() - self._start_s
        self._note(f'call {observed_s}')
        rows = self._scale * self._fake.rows(observed_s, call)
        time.sleep(max(0.0, began + self._fake.latency_s(call) - time.monotonic()))
        self._note(f'answer {time.time() - self._start_s}')
        return torch.from_numpy(rows).float().unsqueeze(0)

    def _note(self, text: str) -> None:
        with self._log.open('a', encoding='utf-8') as log:
            log.write(text + '\n')


def serve(port_file: Path) -> None:
    """Run the server on a free port, which is written down; as ``policy_server.serve`` does."""
    import grpc
    from lerobot.async_inference import policy_server
    from lerobot.async_inference.configs import PolicyServerConfig
    from lerobot.transport import services_pb2_grpc

    def keep(value: Any) -> Any:
        return value

    policy_server.get_policy_class = lambda name: SlowPolicy
    policy_server.make_pre_post_processors = lambda *args, **kwargs: (keep, keep)
    record.prioritise()
    service = policy_server.PolicyServer(PolicyServerConfig(host='127.0.0.1', fps=round(HZ)))
    SlowPolicy.server = service
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(service, server)
    port = server.add_insecure_port('127.0.0.1:0')
    server.start()
    part = port_file.with_suffix('.part')
    part.write_text(str(port), encoding='utf-8')
    part.replace(port_file)
    server.wait_for_termination()


def make_client(case: Case, port: int, log: Path) -> tuple[Any, BenchRobot]:
    """Return LeRobot's client on a fake robot, connected; the run begins after ``LEAD_S``."""
    from lerobot.async_inference import robot_client
    from lerobot.async_inference.configs import RobotClientConfig
    from lerobot.robots import RobotConfig

    @RobotConfig.register_subclass('bench')
    @dataclass
    class BenchConfig(RobotConfig):
        pass

    aggregate, _, unit = case.strategy.partition('/')
    robot = BenchRobot(unit)
    robot_client.make_robot_from_config = lambda config: robot

    class Client(robot_client.RobotClient):
        """Asks whether actions are there once per loop: that is the tick."""

        def actions_available(self) -> bool:
            robot.tick()
            return bool(super().actions_available())

    start_s = time.time() + LEAD_S
    text = json.dumps({'case': case.__dict__, 'start_s': start_s, 'log': str(log)})
    config = RobotClientConfig(
        policy_type='act',
        pretrained_name_or_path=text,
        robot=BenchConfig(),
        actions_per_chunk=case.horizon,
        server_address=f'127.0.0.1:{port}',
        fps=round(HZ),
        aggregate_fn_name=aggregate,
    )
    client = Client(config)
    if not client.start():
        raise ConnectionError('the client does not reach its server')
    robot.begin(start_s)
    return client, robot


def measure(case: Case, out: Path, port: int) -> None:
    """Run a case and write its result."""
    log = out.with_suffix('.calls')
    log.unlink(missing_ok=True)
    client, robot = make_client(case, port, log)
    record.prioritise()
    receiver = threading.Thread(target=client.receive_actions, daemon=True)
    receiver.start()
    loop = threading.Thread(target=client.control_loop, args=('bench',), daemon=True)
    before, began = time.process_time(), time.monotonic()
    loop.start()
    patience_s = began + 10.0 + 5.0 * case.latency_s + case.cold_start_s
    while not robot.recorder.values and time.monotonic() < patience_s:
        time.sleep(0.05)
    time.sleep(case.seconds + 0.2 if robot.recorder.values else 0.0)
    cpu_pct = 100.0 * (time.process_time() - before) / (time.monotonic() - began)
    client.shutdown_event.set()
    loop.join(2.0)
    notes = [line.split() for line in log.read_text(encoding='utf-8').splitlines()]
    answers_s = [float(value) for word, value in notes if word == 'answer']
    calls = len(notes) - len(answers_s)
    trace = robot.recorder.trace(case.seconds, calls, cpu_pct)
    record.write(out, case, trace, answers_s, version=version_of_lerobot())


def wait_for_port(server: subprocess.Popen[bytes], file: Path) -> int:
    """Return the port on which the server listens."""
    until = time.monotonic() + PATIENCE_S
    while not file.exists():
        if server.poll() is not None or time.monotonic() > until:
            raise ConnectionError('the server did not start')
        time.sleep(0.05)
    return int(file.read_text(encoding='utf-8'))


def main() -> None:
    if sys.argv[1] == '--server':
        serve(Path(sys.argv[2]))
        return
    record.end_on_sigterm()
    case, out = Case.read(Path(sys.argv[1])), Path(sys.argv[2])
    port_file = out.with_suffix('.port')
    port_file.unlink(missing_ok=True)
    module = 'benchmarks.execution.measure_lerobot_async'
    server = subprocess.Popen([sys.executable, '-m', module, '--server', str(port_file)])
    try:
        measure(case, out, wait_for_port(server, port_file))
    finally:
        server.kill()
        server.wait()
        port_file.unlink(missing_ok=True)
    sys.stdout.flush()
    os._exit(0)  # their receiver may wait for an answer yet


if __name__ == '__main__':
    main()
