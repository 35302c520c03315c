"""Many episodes with several strategies on the same seeds: parallel, resumable."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed, Future
import copy
from dataclasses import asdict, dataclass, field
import hashlib
import json
from pathlib import Path
import sys
import time
from typing import Any, IO

from chunkpilot_core import config as configs
from chunkpilot_core import registry
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.eval import sources
from chunkpilot_core.eval import workers as processes
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.loop import EpisodeResult, Loop, LoopConfig
from chunkpilot_core.eval.prediction import Prediction
from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.execution.runtime.surprise import Surprise
from chunkpilot_core.perception.runtime.pipeline import Perception
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from chunkpilot_core.runs.progress import progress_bar
from chunkpilot_core.safety.runtime.gate_config import GateConfig
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.sim.disturbance import DisturbanceConfig
from chunkpilot_core.sim.world import World
from chunkpilot_core.tasks.base import TaskDefinition

CALIBRATION_SEED = 10_000_000  # far from the seeds of evaluations and demonstrations
PARTS = {
    'world': World.Config,
    'disturbance': DisturbanceConfig,
    'loop': LoopConfig,
    'perception': Perception.Config,
    'executor': Executor.Config,
    'surprise': Surprise.Config,
    'guard': Guard.Config,
    'gate': GateConfig,
    'prediction': Prediction,
}


LASTING = ('world', 'loop')  # parts that all entries of a comparison share
EXECUTION = ('executor', 'surprise')  # parts that do nothing before an episode starts


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One row of the comparison: a strategy plug-in with its options.

    ``parts`` are options of other parts for this row alone, e.g. of the executor.
    """

    label: str
    plugin: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def build(self) -> Strategy:
        """Return the strategy; raises ConfigError for options that it does not have."""
        cls = registry.get('execution', self.plugin)
        strategy: Strategy = cls(configs.build(cls.Config, self.options, f'{self.plugin}.'))
        return strategy


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides the results."""

    task: str
    policy: str
    entries: tuple[Entry, ...]
    episodes: int
    seed: int = 0
    latency_s: float = 0.05
    jitter_s: float = 0.0
    trace: str = ''
    measured_inference: bool = False
    calibration_episodes: int = 12
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    task_options: Mapping[str, Any] = field(default_factory=dict)
    policy_options: Mapping[str, Any] = field(default_factory=dict)  # instead of the checkpoint's

    def check(self) -> None:
        """
        Refuse what can't run before anything is started.

        :raises ConfigError: no episodes, a label twice, options out of range
        :raises CheckpointError: the policy can't be read
        """
        if self.episodes < 1 or self.seed < 0:
            raise ConfigError(f'{self.episodes} episodes from seed {self.seed}: at least 1 and 0')
        labels = [entry.label for entry in self.entries]
        if not labels or len(set(labels)) != len(labels):
            raise ConfigError(f'strategies {labels}: at least one, each once')
        self.definition()
        self.latency()
        self.built_parts()
        spec = self.served().spec
        for entry in self.entries:
            self.built_parts(entry)
            entry.build().configure(spec)

    def definition(self) -> TaskDefinition:
        """Return the task; raises ConfigError for options that it does not have."""
        cls = registry.get('tasks', self.task)
        task: TaskDefinition = cls(configs.build(cls.Config, self.task_options, 'task.'))
        return task

    def served(self) -> NetPolicy:
        """
        Return the policy.

        :raises CheckpointError: there is none
        :raises ConfigError: an option that it does not have
        """
        policy = checkpoint.load(self.policy)
        return policy.varied(self.policy_options) if self.policy_options else policy

    def latency(self) -> LatencyModel:
        """Return the model of the policy's latency."""
        return LatencyModel(self.latency_s, self.jitter_s, self.trace)

    def built_parts(self, entry: Entry | None = None) -> dict[str, Any]:
        """
        Return the configurations of the loop's parts.

        :param entry: whose own options go before those for all
        :raises ConfigError: options out of range, or of a part that all entries share
        """
        own = entry.parts if entry else {}
        for name in own:
            if name not in PARTS or name in LASTING:
                allowed = [part for part in PARTS if part not in LASTING]
                raise ConfigError(str(UnknownNameError('part of an entry', name, allowed)))
        merged = {
            name: {**self.parts.get(name, {}), **own.get(name, {})}
            for name in {**self.parts, **own}
        }
        return {
            name: configs.build(PARTS[name], values, f'{name}.') for name, values in merged.items()
        }

    def loop(self) -> Loop:
        """Return a loop that runs by these settings."""
        import torch

        torch.set_num_threads(1)
        parts = self.built_parts()
        stopwatch = time.perf_counter_ns if self.measured_inference else None
        options = (parts.pop('loop', None), parts, stopwatch)
        return Loop(self.definition(), self.served(), self.latency(), *options)

    def key(self) -> str:
        """Return a hash of the settings, the weights and the program."""
        manifest = checkpoint.read_manifest(self.policy)
        plugins = (f'execution.{entry.plugin}' for entry in self.entries)
        program = sources.sha256(
            (f'policies.{manifest["spec"]["policy"]}', f'tasks.{self.task}', *plugins)
        )
        text = json.dumps([asdict(self), manifest, program], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def run(
    settings: Settings, workers: int = 1, partial: Path | None = None
) -> dict[str, list[EpisodeResult]]:
    """
    Run every episode with every strategy.

    :param workers: processes; 1 = this one
    :param partial: file of finished episodes; one of the same settings is continued
    :returns: by label, in the order of seeds
    """
    settings.check()
    done = Progress(partial, settings.key())
    seeds = range(settings.seed, settings.seed + settings.episodes)
    open_jobs = [
        (entry, seed)
        for seed in seeds
        for entry in settings.entries
        if (entry.label, seed) not in done.results
    ]
    with progress_bar('episodes', len(open_jobs)) as bar:
        for label, result in _run_jobs(settings, open_jobs, workers):
            done.add(label, result)
            bar.update()
    done.close()
    return {
        entry.label: [done.results[entry.label, seed] for seed in seeds]
        for entry in settings.entries
    }


def _run_jobs(
    settings: Settings, jobs: Sequence[tuple[Entry, int]], workers: int
) -> Iterator[tuple[str, EpisodeResult]]:
    entries = {entry.label: entry for entry, _ in jobs}
    if not jobs:
        return
    if workers == 1:
        loop = settings.loop()
        prepared = {label: prepare(loop, settings, entry) for label, entry in entries.items()}
        for entry, seed in jobs:
            yield entry.label, episode(loop, settings, entry, prepared[entry.label], seed)
        loop.close()
        return
    with processes.pool(workers, _start_worker, (settings,)) as pool:
        ready = {
            label: pool.submit(_prepare_in_worker, settings, entry)
            for label, entry in entries.items()
        }
        strategies = {label: future.result() for label, future in ready.items()}
        running: dict[Future[EpisodeResult], str] = {
            pool.submit(
                _episode_in_worker, settings, entry, strategies[entry.label], seed
            ): entry.label
            for entry, seed in jobs
        }
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def prepare(loop: Loop, settings: Settings, entry: Entry) -> Strategy:
    """Return the strategy with which each episode begins: the same for all of them."""
    strategy = entry.build()
    learns = hasattr(strategy, 'calibration') and not entry.options.get('calibration')
    seeds = range(CALIBRATION_SEED, CALIBRATION_SEED + settings.calibration_episodes * learns)
    return loop.calibrate(strategy, seeds, settings.built_parts(entry))


def episode(
    loop: Loop, settings: Settings, entry: Entry, strategy: Strategy, seed: int
) -> EpisodeResult:
    """Run an episode with a copy of a prepared strategy."""
    return loop.run(seed, copy.deepcopy(strategy), None, settings.built_parts(entry))


_LOOP: Loop | None = None  # of this worker process


def _start_worker(settings: Settings) -> None:
    global _LOOP
    _LOOP = settings.loop()


def _prepare_in_worker(settings: Settings, entry: Entry) -> Strategy:
    assert _LOOP is not None
    return prepare(_LOOP, settings, entry)


def _episode_in_worker(
    settings: Settings, entry: Entry, strategy: Strategy, seed: int
) -> EpisodeResult:
    assert _LOOP is not None
    return episode(_LOOP, settings, entry, strategy, seed)


class Progress:
    """Finished episodes, kept in a file of JSON lines until all are there."""

    def __init__(self, path: Path | None, key: str) -> None:
        self.results: dict[tuple[str, int], EpisodeResult] = {}
        self._path = path
        self._file: IO[str] | None = None
        if path is None:
            return
        if path.exists():
            self._read(path, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, 'a' if self.results else 'w', encoding='utf-8')  # noqa: SIM115
        if not self.results:
            self._write({'key': key})

    def add(self, label: str, result: EpisodeResult) -> None:
        """Note a finished episode."""
        self.results[label, result.seed] = result
        self._write({'strategy': label, 'result': asdict(result)})

    def close(self) -> None:
        """Forget the file: everything is there."""
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + '\n')
            self._file.flush()

    def _read(self, path: Path, key: str) -> None:
        """Take the whole lines up to the first damaged one; the file is cut there."""
        text = path.read_text(encoding='utf-8', errors='replace')
        lines = text.splitlines(keepends=True)
        good = 0
        for line in lines:
            if not line.endswith('\n'):  # killed while writing it
                break
            try:
                entry = json.loads(line)
                if good == 0 and entry['key'] != key:
                    return  # other settings, or another program: begin anew
                if good > 0:
                    result = EpisodeResult.of(entry['result'])
                    self.results[entry['strategy'], result.seed] = result
            except (ValueError, TypeError, KeyError):
                print(
                    f'{path}: line {good + 1} is damaged, {len(self.results)} episodes before it '
                    'are kept, the others run again',
                    file=sys.stderr,
                )
                break
            good += 1
        if good < len(lines):
            path.write_text(''.join(lines[:good]), encoding='utf-8')
