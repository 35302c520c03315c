"""
Measures LeRobot's real-time chunking: its own engine, control loop and guidance.

    python -m benchmarks.execution.measure_lerobot_rtc CASE.json RESULT.json

Runs in an environment where lerobot 0.6.x imports. The engine is used as shipped and with its
defaults (execution_horizon 10, linear schedule, queue_threshold 30): it runs the policy in a
thread of the robot's process, so there is one process where the others have two. Only the robot
and the policy are fake. The policy is a flow of 10 steps to the reference through LeRobot's own
``RTCProcessor``, which pulls it to the chunk before.
"""

import os
from pathlib import Path
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from benchmarks.execution import record
from benchmarks.execution.lerobot_robot import BenchRobot, version_of_lerobot
from benchmarks.execution.reference import Case, FakePolicy, HZ, START
import torch

FLOW_STEPS = 10


class SlowFlow:
    """A policy that knows the reference; flow time runs from 1 to 0, as in LeRobot's policies."""

    config = SimpleNamespace(action_feature_names=None)

    def __init__(self, case: Case, robot: BenchRobot, processor: Any) -> None:
        self.answers_s: list[float] = []
        self.calls = 0
        self._robot, self._processor = robot, processor
        self._fake = FakePolicy(case, START)
        self._generator = torch.Generator().manual_seed(case.seed)

    def supports_rtc(self) -> bool:
        return True

    def reset(self) -> None:
        pass

    def predict_action_chunk(
        self,
        batch: dict[str, Any],
        inference_delay: int = 0,
        prev_chunk_left_over: Any = None,
        **kwargs: Any,
    ) -> Any:
        began, call = time.monotonic(), self.calls
        self.calls += 1
        observed_s = float(batch['observation.state'].flatten()[-1])
        rows = self._robot.scale * self._fake.rows(observed_s, call)
        goal = torch.from_numpy(rows).float().unsqueeze(0)
        chunk = self._flow(goal, inference_delay, prev_chunk_left_over)
        time.sleep(max(0.0, began + self._fake.latency_s(call) - time.monotonic()))
        self.answers_s.append(self._robot.now_s)
        return chunk

    def _flow(self, goal: Any, delay: int, left_over: Any) -> Any:
        x_t = torch.randn(goal.shape, generator=self._generator)
        for step in range(FLOW_STEPS):
            flow_time = 1.0 - step / FLOW_STEPS

            def velocity(x: Any, flow_time: float = flow_time) -> Any:
                return (x - goal) / flow_time

            v_t = self._processor.denoise_step(
                x_t=x_t,
                prev_chunk_left_over=left_over,
                inference_delay=delay,
                time=flow_time,
                original_denoise_step_partial=velocity,
            )
            x_t = (x_t - v_t / FLOW_STEPS).detach()
        return x_t


class Pipeline:
    """A processor that changes nothing."""

    steps: tuple[Any, ...] = ()

    def __call__(self, value: Any) -> Any:
        return value

    def reset(self) -> None:
        pass


def features(robot: BenchRobot) -> dict[str, Any]:
    """Return the robot's numbers as LeRobot's data-set features."""
    from lerobot.utils.feature_utils import hw_to_dataset_features

    return {
        **hw_to_dataset_features(robot.observation_features, 'observation', use_video=False),
        **hw_to_dataset_features(robot.action_features, 'action', use_video=False),
    }


def make_loop(case: Case, robot: BenchRobot) -> tuple[Any, SlowFlow, Any, threading.Event]:
    """Return LeRobot's base rollout loop on its RTC engine, with the policy and the context."""
    from lerobot.policies.rtc import RTCProcessor
    from lerobot.policies.rtc.configuration_rtc import RTCConfig
    from lerobot.rollout import BaseStrategy, BaseStrategyConfig, RTCInferenceConfig
    from lerobot.rollout.inference import create_inference_engine
    from lerobot.rollout.robot_wrapper import ThreadSafeRobot

    class TickingRobot(ThreadSafeRobot):
        """Asked for an observation once per loop: that is the tick."""

        def get_observation(self) -> dict[str, Any]:
            robot.tick()
            found: dict[str, Any] = super().get_observation()
            return found

    wrapper, stop = TickingRobot(robot), threading.Event()
    config = RTCInferenceConfig(rtc=RTCConfig())
    policy = SlowFlow(case, robot, RTCProcessor(config.rtc))
    engine = create_inference_engine(
        config,
        policy=policy,
        preprocessor=Pipeline(),
        postprocessor=Pipeline(),
        robot_wrapper=wrapper,
        hw_features=features(robot),
        dataset_features=features(robot),
        ordered_action_keys=list(robot.action_features),
        task='bench',
        fps=HZ,
        device='cpu',
        shutdown_event=stop,
    )
    settings = SimpleNamespace(
        fps=HZ,
        duration=0.0,
        interpolation_multiplier=1,
        use_torch_compile=False,
        display_data=False,
        return_to_initial_position=False,
    )
    context = SimpleNamespace(
        runtime=SimpleNamespace(cfg=settings, shutdown_event=stop),
        hardware=SimpleNamespace(robot_wrapper=wrapper, initial_position=None, teleop=None),
        policy=SimpleNamespace(inference=engine),
        processors=SimpleNamespace(
            robot_observation_processor=lambda found: found,
            robot_action_processor=lambda pair: pair[0],
        ),
        data=SimpleNamespace(
            dataset_features=features(robot), ordered_action_keys=list(robot.action_features)
        ),
    )
    return BaseStrategy(BaseStrategyConfig()), policy, context, stop


def main() -> None:
    record.end_on_sigterm()
    torch.set_num_threads(1)
    case, out = Case.read(Path(sys.argv[1])), Path(sys.argv[2])
    robot = BenchRobot(case.strategy.partition('/')[2], clock=True)
    strategy, policy, context, stop = make_loop(case, robot)
    record.prioritise()
    strategy.setup(context)
    robot.begin(time.time() + 0.1)
    loop = threading.Thread(target=strategy.run, args=(context,), daemon=True)
    before, began = time.process_time(), time.monotonic()
    loop.start()
    patience_s = began + 10.0 + 5.0 * case.latency_s + case.cold_start_s
    while not robot.recorder.values and time.monotonic() < patience_s:
        time.sleep(0.05)
    time.sleep(case.seconds + 0.2 if robot.recorder.values else 0.0)
    cpu_pct = 100.0 * (time.process_time() - before) / (time.monotonic() - began)
    calls, answers_s = policy.calls, list(policy.answers_s)
    stop.set()
    loop.join(2.0)
    trace = robot.recorder.trace(case.seconds, calls, cpu_pct)
    record.write(out, case, trace, answers_s, version=version_of_lerobot())
    sys.stdout.flush()
    os._exit(0)  # their inference thread may sleep through a long latency yet


if __name__ == '__main__':
    main()
