"""
Rules for serving a policy: which observation may answer a request, how a new policy is tried.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from chunkpilot_core.errors import CheckpointError, ChunkpilotError
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    Health,
    Id,
    Observation,
    PolicySpec,
    seconds,
)
import numpy as np

WARM_UP_CALLS = 20


def refusal(
    request: ChunkRequest, observation: Observation | None, now_ns: int, max_age_s: float
) -> str | None:
    """
    Return why an observation can't answer a request, None if it can.

    :param max_age_s: an observation older than this says nothing about where the robot is
    """
    if observation is None:
        return 'no observation yet'
    age_s = seconds(now_ns - observation.stamp_ns)
    if age_s > max_age_s:
        return f'newest observation is {age_s:.3f} s old, limit {max_age_s:g} s'
    if observation.stamp_ns < request.not_before_ns:
        early_s = seconds(request.not_before_ns - observation.stamp_ns)
        return f'newest observation is {early_s:.3f} s older than the request allows'
    if request.task_id and observation.task_id != request.task_id:
        return f'observation is of task {observation.task_id!r}, request of {request.task_id!r}'
    if observation.health is Health.BAD:
        return f'observation is bad: {observation.health_reason}'
    return None


def stream(
    policy: Policy, observation: Observation, request: ChunkRequest
) -> Iterator[ActionChunk]:
    """
    Yield a policy's chunk, or its parts as they become known, each checked.

    :raises InvalidDataError: the policy can't answer, or not with finite rows
    """
    result = policy.act(observation, request)
    for chunk in (result,) if isinstance(result, ActionChunk) else result:
        chunk.validate(policy.spec.space)
        yield chunk


def answer(policy: Policy, observation: Observation, request: ChunkRequest) -> list[ActionChunk]:
    """Return the same when all of it is known."""
    return list(stream(policy, observation, request))


def example(spec: PolicySpec) -> tuple[Observation, ChunkRequest]:
    """Return a made-up observation with every input of a policy, and a request for it."""
    values = np.zeros(len(spec.input_names), np.float32)
    observation = Observation(Id(1, 1), 1, 1, spec.input_names, values)
    return observation, ChunkRequest(Id(1, 1), 1, 0, '', 'warm-up', 1)


def prepare(
    path: str | Path, version: int, sha256: str, clock_ns: Callable[[], int]
) -> tuple[Policy, float]:
    """
    Load a checkpoint and warm it up beside whatever runs.

    :param version: that it must have, 0 = any
    :param sha256: that its weights must have, '' = any
    :returns: the policy and the median time of an inference [s]
    :raises CheckpointError: missing, damaged, another version, or it can't answer an example
    """
    policy = checkpoint.load(path, sha256=sha256)
    if version and policy.spec.version != version:
        raise CheckpointError(f'{path}: version {policy.spec.version}, asked for {version}')
    observation, request = example(policy.spec)
    durations = []
    try:
        for _ in range(WARM_UP_CALLS):
            started = clock_ns()
            answer(policy, observation, request)
            durations.append(seconds(clock_ns() - started))
    except ChunkpilotError as error:
        raise CheckpointError(f'{path}: fails its self-test: {error}') from error
    return policy, float(np.median(durations))
