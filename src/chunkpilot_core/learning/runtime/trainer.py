"""
Feeds a learner, caps how often it updates, and releases versions that are no worse than before.

The trainer reads no clock and starts no thread: :meth:`Trainer.work` does one piece of work and is
called from one thread, :meth:`Trainer.add` from any.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
import math
import queue

from chunkpilot_core.config import option
from chunkpilot_core.eval.statistics import Estimate, wilson
from chunkpilot_core.learning.base import Learner
from chunkpilot_core.learning.runtime.episodes import Episode
from chunkpilot_core.learning.runtime.versions import VersionStore
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from chunkpilot_core.types import EpisodeOutcome, PolicyVersion


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """How much is learned from what, and when a version is due."""

    utd: float = option(
        1.0, 'Updates per new example (update-to-data ratio), at most.', min=0.0, max=100.0
    )
    min_examples: int = option(200, 'Examples that must be there before updates.', min=1)
    episodes_per_version: int = option(5, 'New successes that make a version due.', min=1)
    tolerance: float = option(
        0.0, 'Share by which the held-out loss may rise in an accepted version.', min=0.0, max=1.0
    )
    success_window: int = option(50, 'Newest episodes that the success is estimated from.', min=1)


class Trainer:
    """Owns the learner; everything else hands it episodes and reads its counters."""

    def __init__(self, learner: Learner, store: VersionStore, config: TrainerConfig) -> None:
        self.config = config
        self.store = store
        self.episodes = 0
        self.rows = 0
        self.updates = 0
        self.losses: Mapping[str, float] = {}
        self._learner = learner
        self._inbox: queue.SimpleQueue[Episode] = queue.SimpleQueue()
        self._outcomes: deque[bool] = deque(maxlen=config.success_window)
        self._credit = 0.0
        self._successes_since = 0
        self._updates_since = 0

    def add(self, episode: Episode) -> None:
        """Hand in a finished episode; never blocks."""
        self._inbox.put(episode)

    def work(self) -> PolicyVersion | None:
        """Do one piece of work: take an episode in, update, or release a version (returned)."""
        try:
            self._take(self._inbox.get_nowait())
        except queue.Empty:
            if self._may_update():
                self._update()
            elif self._due():
                return self._release()
        return None

    @property
    def idle(self) -> bool:
        """Whether :meth:`work` would do nothing."""
        return self._inbox.empty() and not self._may_update() and not self._due()

    @property
    def examples(self) -> int:
        """Examples in the replay buffer."""
        return self._learner.examples

    @property
    def success(self) -> Estimate:
        """Share of successes among the newest episodes; NaN before the first."""
        outcomes = list(self._outcomes)
        if not outcomes:
            return Estimate(math.nan, math.nan, math.nan)
        return wilson(sum(outcomes), len(outcomes))

    def _take(self, episode: Episode) -> None:
        self.episodes += 1
        self.rows += len(episode.ends_ns)
        if episode.outcome in (EpisodeOutcome.SUCCESS, EpisodeOutcome.FAILURE):
            self._outcomes.append(episode.success)
        fresh = self._learner.observe(episode)
        self._credit += fresh * self.config.utd
        self._successes_since += episode.success

    def _may_update(self) -> bool:
        enough = self._learner.examples >= self.config.min_examples
        return self._credit >= 1.0 and enough

    def _update(self) -> None:
        self.losses = self._learner.update()
        self._credit -= 1.0
        self.updates += 1
        self._updates_since += 1

    def _due(self) -> bool:
        enough = self._successes_since >= self.config.episodes_per_version
        return enough and self._updates_since > 0

    def _release(self) -> PolicyVersion:
        """Judge the weights against their parent's on held-out episodes, write them, go on."""
        candidate = self._learner.export()
        assert isinstance(candidate, NetPolicy)  # the store opened one of these
        loss = self._learner.held_out_loss()
        self._learner.restore(self.store.policy)
        parent_loss = self._learner.held_out_loss()
        accepted, reason = self._judge(loss, parent_loss)
        if accepted:
            self._learner.restore(candidate)
        trained = {
            'by': type(self._learner).__name__,
            'updates': self._updates_since,
            'episodes': self._successes_since,
        }
        self._successes_since = self._updates_since = 0
        metrics = {'held_out_loss': loss, 'parent_held_out_loss': parent_loss}
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return self.store.write(
            candidate, accepted=accepted, reason=reason, metrics=finite, trained=trained
        )

    def _judge(self, loss: float, parent_loss: float) -> tuple[bool, str]:
        if math.isnan(parent_loss):
            return False, 'no held-out episodes to judge by'
        limit = parent_loss * (1 + self.config.tolerance)
        # Written so that a loss of NaN is refused.
        accepted = loss <= limit
        word = 'at most' if accepted else 'not at most'
        return accepted, f'held-out loss {loss:.5g} is {word} {limit:.5g} of the parent'
