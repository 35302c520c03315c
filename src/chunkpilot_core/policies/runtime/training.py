"""
Training of a policy on chunks of demonstrations: explicit seeds, resumable, one thread.

What is random in an update depends on the seed and the update's number alone, so that a training
that was killed and goes on ends with the same weights.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
import hashlib
import json
import math
import os
from pathlib import Path

from chunkpilot_core.errors import CheckpointError, InvalidDataError
from chunkpilot_core.policies.runtime.net_policy import Batch, NetPolicy
from chunkpilot_core.types import F32
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open, SafetensorError
from safetensors.torch import save as save_tensors
import torch
from torch import Tensor

WARM_UP_STEPS = 200
SAVE_EVERY = 1000  # updates between two saved states: a few seconds of work
Progress = Callable[[int, float], None]  # update, loss


@dataclass(frozen=True, slots=True)
class Dataset:
    """
    Chunks that start at every row of every demonstration.

    ``inputs`` (N, I), ``actions`` (N, H, A), ``valid`` (N, H): 0 where a chunk outlasts its
    episode.
    """

    inputs: Tensor
    actions: Tensor
    valid: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, rows: Tensor) -> Batch:
        """Return the chunks with the given numbers."""
        return Batch(self.inputs[rows], self.actions[rows], self.valid[rows])

    @property
    def sha256(self) -> str:
        """Hash of the numbers."""
        digest = hashlib.sha256()
        for part in (self.inputs, self.actions, self.valid):
            digest.update(part.numpy().tobytes())
        return digest.hexdigest()


def dataset(episodes: Sequence[tuple[F32, F32, NDArray[np.bool_]]], horizon: int) -> Dataset:
    """
    Cut episodes into overlapping chunks.

    :param episodes: of each, inputs (T, I), rows (T, A) and ``disturbed`` (T,): row t is what was
        right when input t was seen, and whether something else was done instead. A chunk is valid
        up to the first disturbed row: what came after answers what could not be foreseen.
    :param horizon: H; chunks at the end are padded with their last row and masked
    :raises InvalidDataError: no episodes, or numbers that are not finite
    """
    if not episodes:
        raise InvalidDataError('no episodes to train on')
    inputs, actions, valid = [], [], []
    for values, rows, disturbed in episodes:
        index = np.arange(len(rows))[:, None] + np.arange(horizon)
        inside = np.minimum(index, len(rows) - 1)
        disturbances = np.concatenate(([0], np.cumsum(disturbed)))
        foreseen = disturbances[inside] == disturbances[:-1, None]
        inputs.append(values)
        actions.append(rows[inside])
        valid.append(((index < len(rows)) & foreseen).astype(np.float32))
    data = [np.concatenate(parts).astype(np.float32) for parts in (inputs, actions, valid)]
    if not all(np.isfinite(part).all() for part in data):
        raise InvalidDataError('demonstrations hold numbers that are not finite')
    return Dataset(*(torch.from_numpy(part) for part in data))


def train(
    policy: NetPolicy,
    data: Dataset,
    seed: int,
    *,
    state_file: Path | None = None,
    progress: Progress | None = None,
) -> float:
    """
    Train a policy in place; it ends with the moving average of its weights.

    :param policy: freshly built from ``seed``; its config names steps, batch size and rates
    :param state_file: where the state is kept on the way; an older one of the same training goes
        on
    :param progress: called after each update
    :returns: mean loss of the last tenth of the updates
    :raises CheckpointError: the state belongs to another training, or is damaged
    """
    run = _Run(policy, data, seed)
    if state_file is not None and state_file.exists():
        run.restore(state_file)
    total = policy.config.training_steps
    policy.net.train()
    losses = []
    for step in range(run.step, total):
        loss = run.update()
        losses.append(loss)
        if not math.isfinite(loss):
            raise InvalidDataError(f'training diverged: loss {loss} in update {step}')
        if state_file is not None and (step + 1) % SAVE_EVERY == 0 and step + 1 < total:
            run.save(state_file)
        if progress is not None:
            progress(step, loss)
    policy.net.load_state_dict(run.average)
    policy.net.eval()
    return float(np.mean(losses[-max(total // 10, 1) :])) if losses else math.nan


def evaluate(policy: NetPolicy, data: Dataset, seed: int) -> float:
    """Return the training loss on data that was held out."""
    random = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        return float(policy.loss(data.batch(torch.arange(len(data))), random))


class _Run:
    """Weights, optimiser and moving average on the way."""

    def __init__(self, policy: NetPolicy, data: Dataset, seed: int) -> None:
        config = policy.config
        self.policy, self.data, self.seed, self.step = policy, data, seed, 0
        self.optimizer = torch.optim.AdamW(
            policy.net.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        self.average = {name: value.clone() for name, value in policy.net.state_dict().items()}
        what = [asdict(config), policy.spec.policy, policy.spec.input_names, seed, data.sha256]
        self.fingerprint = hashlib.sha256(json.dumps(what).encode()).hexdigest()

    def update(self) -> float:
        config = self.policy.config
        random = torch.Generator().manual_seed(_mix(self.seed, self.step))
        rows = torch.randint(len(self.data), (config.batch_size,), generator=random)
        for group in self.optimizer.param_groups:
            group['lr'] = config.learning_rate * _schedule(self.step, config.training_steps)
        loss = self.policy.loss(self.data.batch(rows), random)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.net.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        # A young average follows fast, so that it forgets the random weights it began with.
        decay = min(config.ema_decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.policy.net.state_dict().items():
                self.average[name].lerp_(value, 1 - decay)
        return float(loss.detach())

    def save(self, file: Path) -> None:
        tensors = dict(self._tensors())
        meta = {'step': str(self.step), 'fingerprint': self.fingerprint}
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix('.new')
        beside.write_bytes(save_tensors(tensors, meta))
        os.replace(beside, file)

    def restore(self, file: Path) -> None:
        try:
            with safe_open(file, 'pt') as stored:
                meta = stored.metadata()
                saved = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f'{file}: damaged, delete it to start over: {error}') from error
        if meta.get('fingerprint') != self.fingerprint:
            raise CheckpointError(
                f'{file}: state of a training with other data or settings; '
                'delete it to start over, or choose another --out'
            )
        self._prepare_optimizer()
        for name, tensor in self._tensors():
            tensor.data.copy_(saved[name])
        self.step = int(meta['step'])

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.policy.net.state_dict().items():
            yield f'net.{name}', value
        for name, value in self.average.items():
            yield f'average.{name}', value
        for i, parameter in enumerate(self.policy.net.parameters()):
            for name, value in self.optimizer.state[parameter].items():
                yield f'optimizer.{i}.{name}', value

    def _prepare_optimizer(self) -> None:
        # AdamW makes its moments in its first step: one with zero gradients and rate changes
        # nothing.
        for group in self.optimizer.param_groups:
            group['lr'] = 0.0
        for parameter in self.policy.net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()


def _schedule(step: int, total: int) -> float:
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm * 0.5 * (1.0 + math.cos(math.pi * step / total))


def _mix(seed: int, step: int) -> int:
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)
