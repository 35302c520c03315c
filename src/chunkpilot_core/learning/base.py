"""
The seam of a learner: episodes go in, better weights come out.

A learner reads no clock, opens no file and knows no ROS. It is used from one thread only.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from chunkpilot_core.learning.runtime.episodes import Episode
from chunkpilot_core.policies.base import Policy


class Learner(ABC):
    """Learns from episodes and hands out what it has learned as a policy."""

    Config: ClassVar[type[Any]]

    @abstractmethod
    def __init__(self, config: Any, policy: Policy) -> None:
        """
        Start from a policy, which is not changed.

        :param config: the plug-in's ``Config``
        :raises CapabilityError: a policy that this learner cannot improve
        """

    @abstractmethod
    def observe(self, episode: Episode) -> int:
        """
        Take in an episode.

        :returns: how many new examples may be learned from; 0 when the episode is of no use
        """

    @abstractmethod
    def update(self) -> dict[str, float]:
        """
        Improve the weights once.

        :returns: losses and the like by name
        """

    @abstractmethod
    def held_out_loss(self) -> float:
        """Return the loss on examples that are never trained on; NaN while there are none."""

    @abstractmethod
    def export(self) -> Policy:
        """Return a copy of the policy with the weights as they are now."""

    @abstractmethod
    def restore(self, policy: Policy) -> None:
        """Go on from the weights of ``policy``, forgetting the optimiser's state."""

    @property
    @abstractmethod
    def examples(self) -> int:
        """How many examples are held for training."""


BASE = Learner
