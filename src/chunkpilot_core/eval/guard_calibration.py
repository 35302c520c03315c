"""
Calibrates the guard's detectors with successful episodes, simulated or recorded, and tries them.

One half of the episodes says what is normal, the other how far normal ones stray from that.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
import hashlib
import math
from pathlib import Path

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.eval.loop import Loop
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime import conformal
from chunkpilot_core.safety.runtime.calibration import GuardCalibration
from chunkpilot_core.safety.runtime.checks import Checks
from chunkpilot_core.safety.runtime.detector import Detector, Part
from chunkpilot_core.safety.runtime.moments import Moment, Record, Witness
from chunkpilot_core.types import EpisodeOutcome, F64, PolicySpec, seconds
import numpy as np

BIN_S = 0.5  # of thresholds that follow the course of an episode


@dataclass(frozen=True, slots=True)
class Trial:
    """How a detector did in some episodes: how many, chunks and alarms in all, when the first."""

    episodes: int
    alarmed: int
    chunks: int
    alarms: int
    first_s: tuple[float, ...] = ()


def simulated(
    loop: Loop,
    seeds: Iterable[int],
    horizon: int,
    samples: int = 1,
    solved_only: bool = True,
) -> Iterator[Record | None]:
    """
    Run episodes; gives None for one that failed.

    :param horizon: rows of each chunk that run
    :param samples: asked for with each chunk; policies give them to those who ask
    """
    for seed in seeds:
        witness = Witness()
        strategy = Fixed(Fixed.Config(horizon))
        strategy.n_samples = samples
        result = loop.run(seed, strategy, None, {'witness': witness})
        solved = result.success or not solved_only
        yield Record(tuple(witness.moments), result.duration_s) if solved else None


def recorded(paths: Sequence[Path], spec: PolicySpec) -> Iterator[Record | None]:
    """
    Read the bags of episodes; gives None for one that failed or is not of the policy.

    :raises BagError: a bag can't be read
    """
    from chunkpilot_core.bags import episodes

    for path in paths:
        episode = episodes.load(path)
        seen = {entry.id: entry for entry in episode.observations}
        moments: list[Moment] = []
        for chunk in episode.chunks:
            fits = (chunk.policy, chunk.space_hash) == (spec.policy, spec.space.hash)
            if not fits or not chunk.final:
                continue
            found = seen.get(chunk.observation_id)
            state = np.zeros(0, np.float32)
            if found is not None:
                state = np.concatenate((found.state, found.features))
            before = moments[-1].chunk if moments else None
            begun_ns = episode.observations[0].stamp_ns if episode.observations else chunk.start_ns
            elapsed_s = max(seconds(chunk.stamp_ns - begun_ns), 0.0)
            moments.append(Moment(chunk, before, spec.space, state, elapsed_s))
        kind = episode.task.kind if episode.task else ''
        solved = episode.outcome is EpisodeOutcome.SUCCESS and bool(moments)
        solved = solved and kind in (spec.task_kind or kind, '')
        yield Record(tuple(moments), episode.duration_s) if solved else None


def make(
    records: Sequence[Record],
    spec: PolicySpec,
    robot: Robot,
    task: str,
    alpha: float,
    source: str,
) -> GuardCalibration:
    """
    Return the calibration of every detector that had something to look at.

    :param records: of successful episodes
    :param alpha: share of normal episodes in which a detector may alarm, each for itself
    :raises ConfigError: fewer than 20 episodes
    """
    if len(records) < conformal.MIN_EPISODES:
        raise ConfigError(
            f'guard calibration: {len(records)} successful episodes, at least '
            f'{conformal.MIN_EPISODES} are needed'
        )
    fitting, held_out = records[0::2], records[1::2]
    parts = {}
    for name, detector in Checks().detectors.items():
        part = _calibrated(detector, fitting, held_out, alpha)
        if part is not None:
            parts[name] = part
    return GuardCalibration(
        robot.name,
        robot.limits_hash,
        spec.name,
        spec.version,
        spec.manifest_sha256,
        spec.space.hash,
        task,
        spec.horizon,
        spec.dt_s,
        len(records),
        alpha,
        source,
        _sha256(records),
        parts,
    )


def _calibrated(
    detector: Detector, fitting: Sequence[Record], held_out: Sequence[Record], alpha: float
) -> Part | None:
    statistics = detector.fit(fitting)
    detector.part = part = Part(statistics=statistics)
    if not detector.conformal:
        return part
    normal = [scores for record in fitting if len(scores := _scores(detector, record))]
    fresh = [scores for record in held_out if len(scores := _scores(detector, record))]
    if len(fresh) < conformal.MIN_HELD_OUT or not normal:
        return None  # nothing to look at, as samples that the policy does not offer
    if detector.varying:
        bins = max(int(max(record.duration_s for record in fitting) / BIN_S) + 1, 1)
        scaled = [[entries / (BIN_S, 1.0) for entries in part_] for part_ in (normal, fresh)]
        band, expected = conformal.band(scaled[0], scaled[1], bins, alpha)
        return replace(part, threshold=tuple(band.tolist()), bin_s=BIN_S, expected=expected)
    peaks = [float(entries[:, 1].max()) for entries in fresh]
    threshold, expected = conformal.constant(peaks, alpha)
    return replace(part, threshold=(threshold,), expected=expected)


def _scores(detector: Detector, record: Record) -> F64:
    """
    Return times and scores of an episode, shape (K, 2), without those that are NaN.

    :raises ConfigError: a policy said what is no number; nobody knows what is normal then
    """
    detector.reset()
    entries = [(moment.elapsed_s, detector.score(moment)) for moment in record.moments]
    if detector.complaint:
        raise ConfigError(f'{detector.name}: {detector.complaint}')
    found: F64 = np.array([entry for entry in entries if not math.isnan(entry[1])]).reshape(-1, 2)
    return found


def trial(
    calibration: GuardCalibration, records: Sequence[Record], since: int = 0
) -> dict[str, Trial]:
    """
    Return how each calibrated detector does in some episodes.

    :param since: chunks before the one at which a fault began; alarms before do not count
    """
    found = {}
    for name, detector in Checks().detectors.items():
        if name not in calibration.detectors:
            continue
        detector.part = calibration.detectors[name]
        alarms = [detector.alarms(record, since) for record in records]
        first = [times[0] for times in alarms if times]
        found[name] = Trial(
            len(records),
            len(first),
            sum(len(record.moments) - since for record in records),
            sum(len(times) for times in alarms),
            tuple(first),
        )
    return found


def _sha256(records: Sequence[Record]) -> str:
    digest = hashlib.sha256()
    for record in records:
        for moment in record.moments:
            digest.update(moment.chunk.actions.tobytes())
            digest.update(moment.state.tobytes())
    return digest.hexdigest()
