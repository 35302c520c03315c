"""
Training of a policy on chunks: explicit seeds, early stopping, resumable, one thread.

What is random in an update depends on the seed and the update's number alone, so that a training
that was killed and goes on ends with the same weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
import math
from pathlib import Path

from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.policies.runtime.dataset import Dataset
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from chunkpilot_core.policies.runtime.training_state import TrainingState
import numpy as np
import torch
from torch import Tensor

WARM_UP_STEPS = 200
SAVE_EVERY = 1000  # updates between two saved states: a few seconds of work
EVALUATE_EVERY = 500  # updates between two points of the loss curve
VALIDATION_CHUNKS = 4096  # more of them tell no more, and cost as much as the training
Progress = Callable[[int, float], None]  # update, loss


@dataclass(frozen=True, slots=True)
class Point:
    """Up to an ``update``: mean training ``loss`` since the last point, and of the validation."""

    update: int
    loss: float
    validation: float


@dataclass(frozen=True, slots=True)
class History:
    """What a training went through, and the update whose weights were ``kept``."""

    points: tuple[Point, ...]
    kept: int
    updates: int
    planned: int

    @property
    def loss(self) -> float:
        """Mean training loss of the last tenth of the points."""
        last = self.points[-(len(self.points) // 10 + 1) :]
        return float(np.mean([point.loss for point in last]))

    @property
    def validation(self) -> float:
        """Validation loss of the weights that were kept; NaN without validation data."""
        return next((p.validation for p in self.points if p.update == self.kept), math.nan)


def train(
    policy: NetPolicy,
    data: Dataset,
    seed: int,
    *,
    validation: Dataset | None = None,
    patience: int = 0,
    state_file: Path | None = None,
    progress: Progress | None = None,
) -> History:
    """
    Train a policy in place; it ends with the moving average of its weights.

    :param policy: freshly built from ``seed``; its config names steps, batch size and rates
    :param validation: with it the average is kept that had the lowest loss on this data
    :param patience: points of the curve without a lower one after which training stops, 0 = never
    :param state_file: where the state is kept on the way; an older one of the same training goes
        on
    :param progress: called after each update
    :raises CheckpointError: the state belongs to another training, or is damaged
    :raises InvalidDataError: the loss is not finite any more
    """
    run = _Run(policy, data, seed, validation)
    if state_file is not None and state_file.exists():
        run.state.restore(state_file)
    total = policy.config.training_steps
    policy.net.train()
    while run.state.step < total and not (patience and run.stalled >= patience):
        loss = run.update()
        step = run.state.step
        if not math.isfinite(loss):
            raise InvalidDataError(f'training diverged: loss {loss} in update {step - 1}')
        if step % EVALUATE_EVERY == 0 or step == total:
            run.evaluate()
        if state_file is not None and step % SAVE_EVERY == 0 and step < total:
            run.state.save(state_file)
        if progress is not None:
            progress(step - 1, loss)
    return run.finish()


def evaluate(policy: NetPolicy, data: Dataset, seed: int) -> float:
    """Return the training loss on data that was held out, the same noise for the same seed."""
    random = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        return float(policy.loss(data.batch(data.spread(VALIDATION_CHUNKS)), random))


class _Run:
    """One training on its way."""

    def __init__(
        self, policy: NetPolicy, data: Dataset, seed: int, validation: Dataset | None
    ) -> None:
        self.policy, self.data, self.seed, self.validation = policy, data, seed, validation
        what = [seed, data.fingerprint, validation.fingerprint if validation else '']
        self.state = TrainingState(policy, what)

    @property
    def points(self) -> list[Point]:
        return [Point(int(step), loss, held) for step, loss, held in self.state.curve]

    @property
    def stalled(self) -> int:
        """Points since the one with the lowest validation loss."""
        return len(self.state.curve) - 1 - self._best() if self.validation else 0

    def update(self) -> float:
        config, state = self.policy.config, self.state
        random = torch.Generator().manual_seed(_mix(self.seed, state.step))
        picks = torch.randint(len(self.data), (config.batch_size,), generator=random)
        for group in state.optimizer.param_groups:
            group['lr'] = config.learning_rate * _schedule(state.step, config.training_steps)
        loss = self.policy.loss(self.data.batch(picks.numpy()), random)
        state.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.net.parameters(), 1.0)
        state.optimizer.step()
        state.step += 1
        self._average()
        value = float(loss.detach())
        state.losses.append(value)
        return value

    def _average(self) -> None:
        # A young average follows fast, so that it forgets the random weights it began with.
        step = self.state.step
        decay = min(self.policy.config.ema_decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, value in self.policy.net.state_dict().items():
                self.state.average[name].lerp_(value, 1 - decay)

    def evaluate(self) -> None:
        """Add a point to the curve, and keep the average when it is the best so far."""
        state = self.state
        held_out = math.nan
        if self.validation is not None:
            weights = _copied(self.policy.net.state_dict())
            self.policy.net.load_state_dict(state.average)
            self.policy.net.eval()
            held_out = evaluate(self.policy, self.validation, self.seed)
            self.policy.net.train()
            self.policy.net.load_state_dict(weights)
        state.curve.append((state.step, float(np.mean(state.losses)), held_out))
        state.losses.clear()
        if self.validation is None or self._best() == len(state.curve) - 1:
            state.best = _copied(state.average)

    def finish(self) -> History:
        """Give the policy the weights that are kept."""
        state, points = self.state, self.points
        self.policy.net.load_state_dict(state.best)
        self.policy.net.eval()
        kept = points[self._best()].update if self.validation else state.step
        return History(tuple(points), kept, state.step, self.policy.config.training_steps)

    def _best(self) -> int:
        """Return the first point with the lowest validation loss; -1 before the first."""
        losses = [held_out for _, _, held_out in self.state.curve]
        return int(np.argmin(losses)) if losses else -1


def _copied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in weights.items()}


def _schedule(step: int, total: int) -> float:
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm * 0.5 * (1.0 + math.cos(math.pi * step / total))


def _mix(seed: int, step: int) -> int:
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)
