"""
Demonstrations: a scripted expert acts on the truth, and what perception would have said is kept.

The policy that learns from them sees in deployment what it has seen here: object positions from
rendered camera images at the camera's rate, late, noisy, occluded by the gripper. Now and then
something else is done than the expert wants, so that recovering is demonstrated; what the expert
wants is the label all the same.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
import json
from pathlib import Path

from chunkpilot_core import camera as cameras
from chunkpilot_core import robot as robots
from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError, UnknownNameError
from chunkpilot_core.perception.runtime.pipeline import Perception
from chunkpilot_core.sim.drive import RowDriver
from chunkpilot_core.sim.renderer import Renderer
from chunkpilot_core.sim.world import World
from chunkpilot_core.types import F32, F64, Image, nanoseconds, Observation
import numpy as np
from numpy.typing import NDArray

FIRST_SEED = 1_000_000  # evaluations count from 0: they never see a scene that was demonstrated
LOWEST_M = 0.012  # disturbances do not press the fingers into the table
OPEN_ROW = (0.0, 0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class DemonstrationConfig:
    """How demonstrations are made."""

    image_period_s: float = option(0.2, 'time between images', unit='s', min=0.01, max=10.0)
    image_delay_s: float = option(
        0.05, 'mean age of an image when it arrives', unit='s', min=0.0, max=1.0
    )
    image_jitter_s: float = option(0.02, 'spread of that age', unit='s', min=0.0, max=1.0)
    pushes_per_row: float = option(
        0.03, 'chance per row that the tool is pushed aside', min=0.0, max=1.0
    )
    push_rows: int = option(8, 'longest push', min=1, max=100)
    push_size: float = option(
        0.1, 'largest push per row, in units of the action', min=0.0, max=1.0
    )
    slips_per_row: float = option(
        0.008, 'chance per row that the gripper does the contrary for a while', min=0.0, max=1.0
    )
    slip_rows: int = option(7, 'longest such while', min=1, max=100)
    start_pushed: float = option(
        0.3, 'chance that an episode begins with a push', min=0.0, max=1.0
    )
    rows_after_success: int = option(13, 'rows of staying at the goal', min=0, max=250)
    pace: float = option(
        1.0, 'speed of the expert, as a share of its top speed', min=0.05, max=1.0
    )
    max_rows: int = option(250, 'longer episodes at full pace have failed', min=1, max=10000)


@dataclass(frozen=True, slots=True)
class Episode:
    """
    One demonstration of T rows.

    ``inputs`` (T, M) with ``names`` (M,): all that an observation holds; ``rows`` (T, A): what the
    expert wanted then; ``disturbed`` (T,): whether something else was done.
    """

    seed: int
    success: bool
    names: tuple[str, ...]
    inputs: F32
    rows: F32
    disturbed: NDArray[np.bool_]

    def select(self, names: tuple[str, ...]) -> F32:
        """
        Return the named inputs, shape (T, len(names)).

        :raises UnknownNameError: a name that was not observed
        """
        index = {name: i for i, name in enumerate(self.names)}
        for name in names:
            if name not in index:
                raise UnknownNameError('observation entry', name, index)
        return self.inputs[:, [index[name] for name in names]]


class Collector:
    """Demonstrates one task; an episode depends on its seed only."""

    def __init__(self, task: str, config: DemonstrationConfig | None = None) -> None:
        """
        Build world, camera, perception and expert.

        :raises UnknownNameError: no such task
        """
        self.config = config or DemonstrationConfig()
        robot = robots.load('panda')
        camera = cameras.load(robots.config_dir() / 'cameras' / 'front.yaml')
        self._world = _SensedWorld(task, robot, self.config, Renderer(camera, robot), camera.name)
        self._world.perception = Perception(robot, {camera.name: camera})
        self._driver = RowDriver(self._world)
        self._expert = self._world.definition.expert(robot)
        self._expert.pace = self.config.pace

    def episode(self, seed: int) -> Episode:
        """
        Demonstrate the scene of ``seed``.

        :raises InvalidDataError: the objects are not found within a second
        """
        random = np.random.default_rng((seed, 1))
        self._begin(seed, random)
        disturbance = Disturbance(self.config, random)
        inputs: list[F32] = []
        rows: list[F32] = []
        disturbed: list[bool] = []
        solved_rows = 0
        done = self._hold
        longest = round(self.config.max_rows / self.config.pace)
        while len(rows) < longest and solved_rows <= self.config.rows_after_success:
            commanded = self._driver.commanded
            names, values = _all_inputs(self._world.observe())
            row = self._expert(self._world.scene(), commanded, done)
            done = row if solved_rows else disturbance(row, commanded)
            inputs.append(values)
            rows.append(row)
            disturbed.append(done is not row)
            self._driver.run(done)
            solved = self._world.success() or (solved_rows and not self._world.definition.lasting)
            solved_rows = solved_rows + 1 if solved else 0
        return Episode(
            seed,
            solved_rows > self.config.rows_after_success,
            names,
            np.array(inputs, np.float32),
            np.array(rows, np.float32),
            np.array(disturbed),
        )

    def close(self) -> None:
        """Free the simulation."""
        self._world.close()

    def _begin(self, seed: int, random: np.random.Generator) -> None:
        world = self._world
        task = world.reset(seed)
        world.begin(random)
        world.perception.reset()
        world.perception.on_task(task)
        self._driver.reset()
        hold = np.array(OPEN_ROW, np.float32)
        hold[3] = self._expert(world.scene(), self._driver.commanded)[3]
        self._hold = hold
        for _ in range(25):
            self._driver.run(hold)
            if np.isfinite(_all_inputs(world.observe())[1]).all():
                return
        raise InvalidDataError(f'seed {seed}: the objects are not found within a second')


class _SensedWorld(World):
    """A world whose camera and encoders feed a perception as it advances."""

    perception: Perception

    def __init__(
        self,
        task: str,
        robot: robots.Robot,
        config: DemonstrationConfig,
        renderer: Renderer,
        name: str,
    ) -> None:
        self._sensing, self._renderer, self._camera = config, renderer, name
        self._coming: list[tuple[int, Image]] = []
        super().__init__(task, robot)

    def begin(self, random: np.random.Generator) -> None:
        """Start the camera at a random phase."""
        self._random = random
        self._coming.clear()
        self._next_image_ns = self.time_ns + nanoseconds(
            random.uniform(0.0, self._sensing.image_period_s)
        )

    def step(self, targets: F64 | None = None) -> None:
        """Advance by one control period and sense."""
        super().step(targets)
        self.perception.on_task(self.task)  # its goal may have moved
        self.perception.on_joint_state(self.joint_state())
        if self.time_ns >= self._next_image_ns:
            self._next_image_ns += nanoseconds(self._sensing.image_period_s)
            delay = self._random.normal(self._sensing.image_delay_s, self._sensing.image_jitter_s)
            image = self._renderer.render(self.scene(), self._random)
            self._coming.append((self.time_ns + nanoseconds(max(delay, 0.0)), image))
        while self._coming and self._coming[0][0] <= self.time_ns:
            self.perception.on_image(self._coming.pop(0)[1])
            # seen now, not only when a row ends: as many looks as in deployment
            self._observation = self.perception.observe(self.time_ns) or self._observation

    _observation: Observation | None = None

    def observe(self) -> Observation:
        """Return what perception says now."""
        self._observation = self.perception.observe(self.time_ns) or self._observation
        assert self._observation is not None
        return self._observation


class Disturbance:
    """Pushes the tool aside for a few rows, or moves the gripper the other way."""

    def __init__(self, config: DemonstrationConfig, random: np.random.Generator) -> None:
        self._config, self._random = config, random
        self._push_rows = self._slip_rows = 0
        self._push = np.zeros(3)
        if random.random() < config.start_pushed:
            self._start_push()

    def __call__(self, row: F32, commanded: F64) -> F32:
        """Return the row (A,) to run: ``row`` itself where nothing is disturbed."""
        config = self._config
        if not self._push_rows and self._random.random() < config.pushes_per_row:
            self._start_push()
        if not self._slip_rows and self._random.random() < config.slips_per_row:
            self._slip_rows = int(self._random.integers(1, config.slip_rows + 1))
        if not self._push_rows and not self._slip_rows:
            return row
        done = row.copy()
        if self._push_rows:
            self._push_rows -= 1
            done[:3] += self._push
            lowest = (LOWEST_M - commanded[2]) / 0.05
            done[2] = max(done[2], min(row[2], lowest))
        if self._slip_rows:
            self._slip_rows -= 1
            done[3] = -row[3]
        bounded: F32 = np.clip(done, -1.0, 1.0).astype(np.float32)
        return bounded

    def _start_push(self) -> None:
        direction = self._random.normal(size=3)
        direction /= np.linalg.norm(direction)
        self._push = direction * self._random.uniform(0.2, 1.0) * self._config.push_size
        self._push_rows = int(self._random.integers(1, self._config.push_rows + 1))


def collect(
    task: str, episodes: int, seed: int, folder: Path, config: DemonstrationConfig | None = None
) -> Iterator[Episode]:
    """
    Demonstrate a task; episodes that are in ``folder`` already are read, new ones are added.

    :param seed: another seed, other scenes
    :raises InvalidDataError: the folder holds demonstrations that were made otherwise
    """
    config = config or DemonstrationConfig()
    _claim(folder, {'task': task, 'seed': seed, 'config': asdict(config)})
    collector: Collector | None = None
    try:
        for number in range(episodes):
            file = folder / f'{number:05d}.npz'
            if not file.exists():
                collector = collector or Collector(task, config)
                _write(file, collector.episode(FIRST_SEED * (seed + 1) + number))
            yield _read(file)
    finally:
        if collector is not None:
            collector.close()


def _claim(folder: Path, what: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / 'demonstrations.json'
    text = json.dumps(what, indent=1) + '\n'
    if not file.exists():
        file.write_text(text)
    elif file.read_text() != text:
        raise InvalidDataError(
            f'{folder}: holds demonstrations of another task, seed or configuration'
        )


def _write(file: Path, episode: Episode) -> None:
    beside = file.with_suffix('.new')
    with open(beside, 'wb') as stream:
        np.savez(
            stream,
            seed=episode.seed,
            success=episode.success,
            names=np.array(episode.names),
            inputs=episode.inputs,
            rows=episode.rows,
            disturbed=episode.disturbed,
        )
    beside.rename(file)


def _read(file: Path) -> Episode:
    try:
        with np.load(file, allow_pickle=False) as data:
            return Episode(
                int(data['seed']),
                bool(data['success']),
                tuple(str(name) for name in data['names']),
                data['inputs'],
                data['rows'],
                data['disturbed'],
            )
    except (OSError, ValueError, KeyError) as error:
        raise InvalidDataError(f'{file}: damaged, delete it: {error}') from error


def _all_inputs(observation: Observation) -> tuple[tuple[str, ...], F32]:
    names = observation.state_names + observation.feature_names + observation.goal_names
    return names, observation.vector(names)
