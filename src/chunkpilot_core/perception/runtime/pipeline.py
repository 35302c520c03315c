"""
Turns joint states and images into observations: synchronised by stamp, through a list of stages.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chunkpilot_core import registry
from chunkpilot_core.camera import Camera
from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError, UnknownNameError
from chunkpilot_core.perception.base import RobotState, Stage, Surroundings
from chunkpilot_core.perception.runtime.frames import Frames
from chunkpilot_core.perception.runtime.history import History
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import (
    F32,
    Health,
    Id,
    Image,
    JointState,
    nanoseconds,
    Observation,
    seconds,
    Task,
)
import numpy as np


class Perception:
    """
    Builds observations of a robot and its scene.

    The observation's stamp is that of the newest joint state. Each image is used once, together
    with the robot at the image's stamp, as soon as there is a joint state that is not older than
    it.
    """

    @dataclass(frozen=True, slots=True)
    class Config:
        """What is done to an observation, and how old its parts may be."""

        stages: tuple[str, ...] = option(('objects',), 'perception stages, in order')
        history_s: float = option(2.0, 'how long joint states are remembered', unit='s', min=0.1)
        max_state_age_s: float = option(
            0.1, 'older joint states make an observation bad', unit='s', min=0.001
        )
        image_period_s: float = option(
            0.2,
            'expected time between images; older than 3 periods + 0.1 s is degraded',
            unit='s',
            min=0.001,
        )
        max_image_age_s: float = option(
            1.5, 'older images make an observation bad, if the task needs them', unit='s', min=0.01
        )
        max_clock_skew_s: float = option(
            0.5,
            'stamps further ahead of the clock or of each other belong to another clock',
            unit='s',
            min=0.001,
        )

    def __init__(
        self,
        robot: Robot,
        cameras: Mapping[str, Camera],
        config: Config | None = None,
        stage_configs: Mapping[str, Any] | None = None,
        session: int = 1,
    ) -> None:
        """
        Build the chain.

        :param cameras: by the name that images carry
        :param stage_configs: by stage name; others run with defaults
        :param session: of the observations' ids; random per process in a node
        :raises UnknownNameError: a stage or a stage configuration that does not exist
        """
        self.config = config or Perception.Config()
        self.robot = robot
        self.cameras = dict(cameras)
        self.counters: Counter[str] = Counter()
        self._session = session
        self._seq = 0
        self._history = History(robot, self.config.history_s)
        self._state_names = _state_names(robot)
        self._task: Task | None = None
        self._frames = self._make_frames()
        self._observed_ns: int | None = None
        self._task_ns: int | None = None
        self._stages = self._make_stages(stage_configs or {})

    def _make_frames(self) -> dict[str, Frames]:
        period_s = self.config.image_period_s
        return {name: Frames(camera, period_s) for name, camera in self.cameras.items()}

    def _make_stages(self, configs: Mapping[str, Any]) -> dict[str, Stage]:
        for name in configs:
            if name not in self.config.stages:
                raise UnknownNameError('perception stage', name, self.config.stages)
        around = Surroundings(self.robot, self.cameras, self._history.at, self._history.since)
        stages: dict[str, Stage] = {}
        for name in self.config.stages:
            cls = registry.get('perception', name)
            stages[name] = cls(configs.get(name) or cls.Config(), around)
        return stages

    def reset(self) -> None:
        """Forget everything measured; the task stays."""
        self._history.clear()
        self._frames = self._make_frames()
        self._observed_ns = self._task_ns = None
        for stage in self._stages.values():
            stage.reset(self._task)

    def on_task(self, task: Task) -> None:
        """
        Take the task in force; a new id makes the stages forget what they saw.

        The same id again is the same task whose goal has moved: only the goal is taken then.
        """
        before, self._task = self._task, task
        if before is None or task.id != before.id:
            # what waits was taken before the scene was put in order for this task
            self._task_ns = self._history.newest_ns
            for stage in self._stages.values():
                stage.reset(task)

    def on_joint_state(self, state: JointState) -> str | None:
        """
        Take a measured joint state.

        A stamp that is older by more than the history is a clock that was set back (a simulation
        started anew, a bag that loops): everything is forgotten then.

        :returns: why it was refused, None if it was taken
        """
        newest = self._history.newest_ns
        if newest is not None and newest - state.stamp_ns > nanoseconds(
            self.config.max_clock_skew_s
        ):
            self.counters['clock_jumps'] += 1
            self.reset()
        try:
            self._history.add(state)
        except InvalidDataError as error:
            self.counters['joint_states_refused'] += 1
            return str(error)
        self.counters['joint_states'] += 1
        return None

    def on_image(self, image: Image) -> str | None:
        """
        Take a camera image.

        :returns: why it was refused, None if it was taken
        """
        if image.name not in self._frames:
            reason: str | None = str(UnknownNameError('camera', image.name, self.cameras))
        else:
            reason = self._frames[image.name].take(
                image, self._history.newest_ns, self.config.max_clock_skew_s
            )
        self.counters['images' if reason is None else 'images_refused'] += 1
        return reason

    def observe(self, now_ns: int, arm_epoch: int = 0) -> Observation | None:
        """
        Return the observation at the newest joint state; None if there is none newer than the last
        one.

        ``images`` of the result are those that were used for the first time.
        """
        robot = self._history.newest()
        if robot is None or robot.stamp_ns == self._observed_ns:
            return None
        self._observed_ns = robot.stamp_ns
        images = self._due_images(robot.stamp_ns)
        self._seq += 1
        observation = self._base(robot, images, arm_epoch, now_ns)
        for name, stage in self._stages.items():
            observation = self._apply(name, stage, observation)
        return observation

    def _due_images(self, stamp_ns: int) -> tuple[Image, ...]:
        due = []
        for frames in self._frames.values():
            for image in frames.due(stamp_ns, self._task_ns, self.counters):
                robot = self._history.at(image.stamp_ns)
                if robot is None:
                    self.counters['images_unmatched'] += 1  # older than the history
                    continue
                arm = robot.velocities[: len(self.robot.arm_joints)]
                frames.health.see(image, float(np.abs(arm).max()))
                due.append(image)
        return tuple(sorted(due, key=lambda image: image.stamp_ns))

    def _base(
        self, robot: RobotState, images: tuple[Image, ...], arm_epoch: int, now_ns: int
    ) -> Observation:
        used = {n: f.used_ns for n, f in self._frames.items() if f.used_ns is not None}
        ages = {'joint_states': 0.0}
        ages |= {name: seconds(robot.stamp_ns - used_ns) for name, used_ns in used.items()}
        missing = tuple(name for name in self.cameras if name not in used)
        health, reason = self._health(robot.stamp_ns, now_ns, ages, missing)
        task = self._task or Task('', '')
        return Observation(
            Id(self._session, self._seq),
            robot.stamp_ns,
            min((robot.stamp_ns, *used.values())),
            self._state_names,
            _state(robot),
            goal_names=task.goal_names,
            goal=task.goal,
            arm_epoch=arm_epoch,
            task_id=task.id,
            ages_s=ages,
            missing=missing,
            frozen=tuple(n for n, f in self._frames.items() if f.health.frozen),
            dropped=tuple(n for n, f in self._frames.items() if f.dropped(robot.stamp_ns)),
            health=health,
            health_reason=reason,
            images=images,
        )

    def _health(
        self, stamp_ns: int, now_ns: int, ages: Mapping[str, float], missing: tuple[str, ...]
    ) -> tuple[Health, str]:
        config, state_age_s = self.config, seconds(now_ns - stamp_ns)
        health, reasons = Health.OK, []
        if state_age_s > config.max_state_age_s:
            health = Health.BAD
            reasons.append(
                f'joint_states {state_age_s:.3f} s old, limit {config.max_state_age_s:g} s'
            )
        if state_age_s < -config.max_clock_skew_s:
            health = Health.BAD
            reasons.append(f'joint_states stamped {-state_age_s:.3f} s ahead of the clock')
        needed = any(stage.needs_images for stage in self._stages.values())
        worst = Health.BAD if needed else Health.DEGRADED
        for name in missing:
            health = max(health, worst)
            reasons.append(f'{name}: no image yet')
        for name, age_s in ages.items():
            limit_s = 3 * config.image_period_s + 0.1
            if name != 'joint_states' and age_s > limit_s:
                health = max(health, worst if age_s > config.max_image_age_s else Health.DEGRADED)
                reasons.append(f'{name}: image {age_s:.2f} s old, limit {limit_s:g} s')
        for name, frames in self._frames.items():
            if frames.health.fault:
                health = max(health, worst)
                reasons.append(f'{name}: {frames.health.fault}')
            if frames.dropped(stamp_ns):
                health = max(health, Health.DEGRADED)
                reasons.append(f'{name}: images are missing')
        return health, '; '.join(reasons)

    def _apply(self, name: str, stage: Stage, observation: Observation) -> Observation:
        try:
            return stage(observation)
        except Exception as error:  # whatever a plug-in does, the state goes out
            self.counters[f'{name}_failed'] += 1
            reason = f'stage {name} failed: {type(error).__name__}: {error}'
            names = stage.feature_names
            unknown = np.full(len(names), np.nan, np.float32)
            return replace(
                observation,
                feature_names=observation.feature_names + names,
                features=np.concatenate((observation.features, unknown)),
                missing=(*observation.missing, name),
                health=max(observation.health, Health.DEGRADED),
                health_reason='; '.join(filter(None, (observation.health_reason, reason))),
            )


def _state_names(robot: Robot) -> tuple[str, ...]:
    return (
        *(f'{joint}.position' for joint in robot.joints),
        *(f'{joint}.velocity' for joint in robot.joints),
        *('ee.x', 'ee.y', 'ee.z', 'ee.vx', 'ee.vy', 'ee.vz', 'gripper.width'),
    )


def _state(robot: RobotState) -> F32:
    parts = (
        robot.positions,
        robot.velocities,
        robot.tool.position,
        robot.tool_velocity,
        [robot.width],
    )
    return np.concatenate(parts).astype(np.float32)
