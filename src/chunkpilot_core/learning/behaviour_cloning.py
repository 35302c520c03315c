"""
Behaviour cloning of what worked: the policy learns the rows that were sent in successful episodes.

Filtered imitation of the robot's own successes (Oh et al. 2018, arXiv 1806.05635, without critic;
"filtered BC" in the offline-RL literature): every success is a demonstration, rows of people count
as the policy's own. Differs from training on demonstrations: rows are what the guard let through,
and rows that the guard, homing or starvation made are masked out.
"""

from dataclasses import dataclass, replace

from chunkpilot_core.config import option
from chunkpilot_core.errors import CapabilityError, UnknownNameError
from chunkpilot_core.learning.base import Learner
from chunkpilot_core.learning.runtime.buffer import ReplayBuffer
from chunkpilot_core.learning.runtime.episodes import Episode
from chunkpilot_core.learning.runtime.windows import Windows, windows
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.policies.runtime.net_policy import Batch, NetPolicy
from chunkpilot_core.types import RowSource
import numpy as np
import torch

HELD_OUT_SEED = 20260917  # noise of stochastic losses: the same for every version compared


class BehaviourCloning(Learner):
    """Regression on the rows really sent in successful episodes."""

    @dataclass(frozen=True, slots=True)
    class Config:
        """Data and optimiser."""

        learning_rate: float = option(5e-5, 'Rate of AdamW.', min=0.0, max=0.1)
        weight_decay: float = option(1e-4, 'Decay of AdamW.', min=0.0, max=1.0)
        batch_size: int = option(256, 'Examples of one update.', min=1, max=65536)
        max_gradient_norm: float = option(1.0, 'Gradients are clipped to this norm.', min=1e-6)
        capacity: int = option(20000, 'Examples kept; the oldest make room.', min=1)
        hold_out_every: int = option(
            4, 'Every n-th success is kept from training, to judge versions by.', min=2, max=1000
        )
        imitate: tuple[str, ...] = option(
            ('policy', 'residual', 'human'),
            'Whose rows are learned.',
            choices=('policy', 'residual', 'human', 'guard', 'homing', 'starved'),
        )
        seed: int = option(0, 'Of the order in which examples are drawn.', min=0)

    def __init__(self, config: Config, policy: Policy) -> None:
        if not isinstance(policy, NetPolicy):
            raise CapabilityError(
                f'behaviour_cloning needs a policy with a network, {policy.spec.policy!r} has none'
            )
        self.config = config
        self._sources = tuple(_source(name) for name in config.imitate)
        self._training = ReplayBuffer(config.capacity)
        self._held_out = ReplayBuffer(max(config.capacity // config.hold_out_every, 1))
        self._successes = 0
        self._picks = np.random.default_rng(config.seed)
        self._noise = torch.Generator().manual_seed(config.seed)
        self.restore(policy)

    def observe(self, episode: Episode) -> int:
        """Keep the examples of a success; every n-th one is held out."""
        if not episode.success:
            return 0
        examples = windows(episode, self._policy.spec, self._sources)
        if not len(examples):
            return 0
        self._successes += 1
        # The second success is the first one held out, so that versions can be judged early.
        if self._successes % self.config.hold_out_every == 2 % self.config.hold_out_every:
            self._held_out.add(examples)
            return 0
        self._training.add(examples)
        return len(examples)

    def update(self) -> dict[str, float]:
        """Take one optimiser step; a loss that is not finite leaves the weights alone."""
        batch = _batch(self._training.sample(self.config.batch_size, self._picks))
        self._policy.net.train()
        loss = self._policy.loss(batch, self._noise)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(
            self._policy.net.parameters(), self.config.max_gradient_norm
        )
        if torch.isfinite(norm):
            self._optimiser.step()
        self._policy.net.eval()
        return {'loss': float(loss.detach()), 'gradient_norm': float(norm)}

    def held_out_loss(self) -> float:
        """Return the loss on held-out successes, with the same noise for every version."""
        if not len(self._held_out):
            return float('nan')
        random = torch.Generator().manual_seed(HELD_OUT_SEED)
        with torch.inference_mode():
            return float(self._policy.loss(_batch(self._held_out.all()), random))

    def export(self) -> NetPolicy:
        """Return a copy of the policy as it is now."""
        return _copy(self._policy)

    def restore(self, policy: Policy) -> None:
        """Go on from ``policy`` with a fresh optimiser."""
        if not isinstance(policy, NetPolicy):
            raise CapabilityError(f'{policy.spec.policy!r} has no network to go on from')
        self._policy = _copy(policy)
        self._optimiser = torch.optim.AdamW(
            self._policy.net.parameters(),
            lr=self.config.learning_rate,
            weight_decay=self.config.weight_decay,
        )

    @property
    def examples(self) -> int:
        """Examples held for training."""
        return len(self._training)


def _copy(policy: NetPolicy) -> NetPolicy:
    copied = type(policy)(policy.config, replace(policy.spec), policy.normalizer)
    copied.net.load_state_dict(policy.net.state_dict())
    return copied


def _batch(examples: Windows) -> Batch:
    return Batch(
        torch.from_numpy(examples.inputs),
        torch.from_numpy(examples.rows),
        torch.from_numpy(examples.valid.astype(np.float32)),
    )


def _source(name: str) -> RowSource:
    try:
        return RowSource[name.upper()]
    except KeyError:
        known = (source.name.lower() for source in RowSource)
        raise UnknownNameError('source of rows', name, known) from None
