"""The seam of a policy: an observation goes in, a chunk of actions comes out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from chunkpilot_core.types import (
    ActionChunk,
    ChunkPart,
    ChunkRequest,
    F32,
    Id,
    Observation,
    PolicySpec,
)


class Policy(ABC):
    """
    Predicts chunks of actions; ``spec`` says what it needs and what its rows mean.

    A policy reads no clock: whoever serves it fills in ``stamp_ns``, ``inference_s`` and, where
    several policies answer in one session, the chunk's id.
    """

    Config: ClassVar[type[Any]]
    spec: PolicySpec
    _answers: int = 0

    @abstractmethod
    def act(
        self, observation: Observation, request: ChunkRequest
    ) -> ActionChunk | Iterator[ActionChunk]:
        """
        Answer a request.

        :param observation: what is known; its names must cover ``spec.input_names``
        :param request: what is asked for; only policies that start at the request read more of it
            than ids
        :returns: a valid chunk, or its parts in the order in which they become known
        :raises InvalidDataError: an input is unknown (NaN), or the answer is not finite
        :raises UnknownNameError: the observation lacks an input
        """

    def reset(self, seed: int) -> None:  # noqa: B027 - optional by design
        """Forget the episode and start its random numbers from ``seed``."""

    def start_ns(self, observation: Observation, request: ChunkRequest) -> int:
        """Return when row 0 of the answer to a request is due [ns]."""
        at_request = self.spec.starts_at == 'request' or request.state_at_start
        return request.start_ns if at_request else observation.stamp_ns

    def chunk(
        self,
        observation: Observation,
        request: ChunkRequest,
        rows: F32,
        samples: F32 | None = None,
    ) -> ActionChunk:
        """
        Wrap finished rows into a checked chunk.

        :param rows: shape (H, A), policy units
        :param samples: shape (N, H, A), candidates of the same decision
        :raises InvalidDataError: wrong shape or a number that is not finite
        """
        self._answers += 1
        spec = self.spec
        part = ChunkPart(
            0, len(rows), observation.id, observation.stamp_ns, executable_rows=len(rows)
        )
        chunk = ActionChunk(
            id=Id(request.id.session, self._answers),
            request_id=request.id,
            arm_epoch=request.arm_epoch,
            task_id=request.task_id,
            observation_id=observation.id,
            observation_stamp_ns=observation.stamp_ns,
            observation_oldest_ns=observation.oldest_ns,
            start_ns=self.start_ns(observation, request),
            dt_s=spec.dt_s,
            actions=rows,
            space_hash=spec.space.hash,
            policy=spec.policy,
            policy_version=spec.version,
            parts=(part,),
            samples=samples,
            answered_by=spec.policy,
            max_row_age_s=spec.max_row_age_s,
        )
        chunk.validate(spec.space)
        return chunk


BASE = Policy
