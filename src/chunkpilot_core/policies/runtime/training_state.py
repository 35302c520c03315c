"""What a training that was killed needs to go on, in a file: weights, optimiser, curve."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
import glob
import hashlib
import json
from pathlib import Path
from typing import Any

from chunkpilot_core import files
from chunkpilot_core.errors import CheckpointError
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from safetensors import safe_open, SafetensorError
from safetensors.torch import save as save_tensors
import torch
from torch import Tensor


class TrainingState:
    """
    All that changes in a training.

    ``average`` is the moving average of the weights and ``best`` the one to keep so far; ``curve``
    has (update, training loss, validation loss), ``losses`` those since its last point.
    """

    def __init__(self, policy: NetPolicy, what: Sequence[Any]) -> None:
        """
        Begin with the policy's weights.

        :param what: tells this training from others, beside the policy
        """
        config = policy.config
        self._net = policy.net
        self.step = 0
        self.optimizer = torch.optim.AdamW(
            policy.net.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        self.average = {name: value.clone() for name, value in policy.net.state_dict().items()}
        self.best = {name: value.clone() for name, value in self.average.items()}
        self.curve: list[tuple[int, float, float]] = []
        self.losses: list[float] = []
        spec = policy.spec
        identity = [asdict(config), spec.policy, spec.input_names, spec.space.hash, *what]
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def save(self, file: Path) -> None:
        """
        Write the state, whole or not at all.

        :raises OSError: it can't be written
        """
        meta = {
            'step': str(self.step),
            'fingerprint': self.fingerprint,
            'curve': json.dumps(self.curve),
            'losses': json.dumps(self.losses),
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(file, save_tensors(dict(self._tensors()), meta))

    def restore(self, file: Path) -> None:
        """
        Go on where a state was saved.

        :raises CheckpointError: it belongs to another training, or is damaged
        """
        try:
            with safe_open(file, 'pt') as stored:
                meta = stored.metadata() or {}
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
        self.curve = [(step, loss, held) for step, loss, held in json.loads(meta['curve'])]
        self.losses = json.loads(meta['losses'])

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for part, weights in (
            ('net', self._net.state_dict()),
            ('average', self.average),
            ('best', self.best),
        ):
            for name, value in weights.items():
                yield f'{part}.{name}', value
        for i, parameter in enumerate(self._net.parameters()):
            for name, value in self.optimizer.state[parameter].items():
                yield f'optimizer.{i}.{name}', value

    def _prepare_optimizer(self) -> None:
        # AdamW makes its moments in its first step: one with zero gradients and rate changes
        # nothing.
        for group in self.optimizer.param_groups:
            group['lr'] = 0.0
        for parameter in self._net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()


def forget(file: Path) -> None:
    """Remove a state, and what a kill has left half written beside it."""
    file.unlink(missing_ok=True)
    for half in file.parent.glob(f'.{glob.escape(file.name)}.*.new'):
        half.unlink(missing_ok=True)
