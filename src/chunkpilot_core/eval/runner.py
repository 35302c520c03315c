"""Many episodes with several strategies on the same seeds: parallel, resumable."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed, Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
import hashlib
import json
import multiprocessing
import os
from pathlib import Path
import sys
import time
from typing import Any, IO

from chunkpilot_core import config as configs
from chunkpilot_core import registry
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.loop import EpisodeResult, Loop, LoopConfig
from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.perception.runtime.pipeline import Perception
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.sim.world import World
from tqdm import tqdm

CALIBRATION_SEED = 10_000_000  # far from the seeds of evaluations and demonstrations
PARTS = {
    'world': World.Config,
    'loop': LoopConfig,
    'perception': Perception.Config,
    'executor': Executor.Config,
    'guard': Guard.Config,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the comparison: a strategy plug-in with its options."""

    label: str
    plugin: str
    options: Mapping[str, Any] = field(default_factory=dict)

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
        registry.get('tasks', self.task)
        self.latency()
        self.built_parts()
        spec = checkpoint.load(self.policy).spec
        for entry in self.entries:
            entry.build().configure(spec)

    def latency(self) -> LatencyModel:
        """Return the model of the policy's latency."""
        return LatencyModel(self.latency_s, self.jitter_s, self.trace)

    def built_parts(self) -> dict[str, Any]:
        """Return the configurations of the loop's parts."""
        return {
            name: configs.build(PARTS[name], values, f'{name}.')
            for name, values in self.parts.items()
        }

    def loop(self) -> Loop:
        """Return a loop that runs by these settings."""
        import torch

        torch.set_num_threads(1)
        parts = self.built_parts()
        stopwatch = time.perf_counter_ns if self.measured_inference else None
        policy = checkpoint.load(self.policy)
        return Loop(self.task, policy, self.latency(), parts.pop('loop', None), parts, stopwatch)

    def key(self) -> str:
        """Return a hash of the settings, the weights and the program."""
        manifest = checkpoint.read_manifest(self.policy)
        text = json.dumps([asdict(self), manifest, source_sha256()], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def source_sha256() -> str:
    """Return a hash of the core's sources, so that results of two programs are never mixed."""
    root = Path(registry.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob('*.py')):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


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
    with tqdm(
        total=len(open_jobs), desc='episodes', mininterval=0.5, dynamic_ncols=True, disable=None
    ) as bar:
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
        prepared = {label: _prepare(loop, settings, entry) for label, entry in entries.items()}
        for entry, seed in jobs:
            yield entry.label, _episode(loop, prepared[entry.label], seed)
        loop.close()
        return
    context = multiprocessing.get_context('spawn')  # torch and PyBullet do not survive a fork
    with ProcessPoolExecutor(workers, context, _start_worker, (settings,)) as pool:
        ready = {
            label: pool.submit(_prepare_in_worker, settings, entry)
            for label, entry in entries.items()
        }
        strategies = {label: future.result() for label, future in ready.items()}
        running: dict[Future[EpisodeResult], str] = {
            pool.submit(_episode_in_worker, strategies[entry.label], seed): entry.label
            for entry, seed in jobs
        }
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _prepare(loop: Loop, settings: Settings, entry: Entry) -> Strategy:
    """Return the strategy with which each episode begins: the same for all of them."""
    strategy = entry.build()
    learns = hasattr(strategy, 'calibration') and not entry.options.get('calibration')
    count = settings.calibration_episodes if learns else 0
    return loop.calibrate(strategy, range(CALIBRATION_SEED, CALIBRATION_SEED + count))


def _episode(loop: Loop, strategy: Strategy, seed: int) -> EpisodeResult:
    return loop.run(seed, loop.calibrate(strategy, range(0)))


_LOOP: Loop | None = None  # of this worker process


def _start_worker(settings: Settings) -> None:
    global _LOOP
    os.nice(5)
    _LOOP = settings.loop()


def _prepare_in_worker(settings: Settings, entry: Entry) -> Strategy:
    assert _LOOP is not None
    return _prepare(_LOOP, settings, entry)


def _episode_in_worker(strategy: Strategy, seed: int) -> EpisodeResult:
    assert _LOOP is not None
    return _episode(_LOOP, strategy, seed)


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
                    values = {**entry['result'], 'notes': tuple(entry['result']['notes'])}
                    result = EpisodeResult(**values)
                    self.results[entry['strategy'], result.seed] = result
            except (ValueError, TypeError, KeyError):
                tqdm.write(
                    f'{path}: line {good + 1} is damaged, {len(self.results)} episodes before it '
                    'are kept, the others run again',
                    file=sys.stderr,
                )
                break
            good += 1
        if good < len(lines):
            path.write_text(''.join(lines[:good]), encoding='utf-8')
