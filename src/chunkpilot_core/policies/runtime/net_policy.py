"""What policies with a network share: reading an observation, scaling, checking the answer."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.policies.runtime import inputs
from chunkpilot_core.policies.runtime.inputs import Normalizer
from chunkpilot_core.types import ActionChunk, ChunkRequest, F32, Observation, PolicySpec
import numpy as np
import torch
from torch import nn, Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """
    Training data: ``inputs`` (B, I) and ``actions`` (B, H, A) in their own units, ``valid`` (B, H)
    0 or 1.
    """

    inputs: Tensor
    actions: Tensor
    valid: Tensor


class NetPolicy(Policy):
    """
    A policy whose rows come from one ``net``; a member names its network, its loss and how it
    samples.
    """

    def __init__(
        self, config: Any, spec: PolicySpec, normalizer: Normalizer | None = None
    ) -> None:
        """
        Build the network with random weights.

        :param config: the plug-in's ``Config``
        :param spec: what it is to be; ``input_names`` fix the size of the network
        :param normalizer: of the data that it was or will be trained on
        :raises InvalidDataError: a normaliser of the wrong size
        """
        self.config = config
        self.spec = replace(spec, capabilities=self.capabilities)
        self._encoding = torch.from_numpy(inputs.encoding(spec.input_names)).float()
        self.encoded_size = self._encoding.shape[1]
        self.normalizer = normalizer or inputs.identity(self.encoded_size, spec.space.size)
        self.normalizer.check(self.encoded_size, spec.space.size)
        mean, std, action_mean, action_std = (
            torch.tensor(values, dtype=torch.float32)
            for values in (
                self.normalizer.input_mean,
                self.normalizer.input_std,
                self.normalizer.action_mean,
                self.normalizer.action_std,
            )
        )
        self._input_scale = (mean, std)
        self._action_scale = (action_mean, action_std)
        self._bounds = (np.array(spec.space.lower), np.array(spec.space.upper))
        self._random = torch.Generator()
        self.net = self.build()
        self.net.eval()

    capabilities: tuple[str, ...] = ()

    @abstractmethod
    def build(self) -> nn.Module:
        """Return the network for ``encoded_size`` inputs and the spec's chunk."""

    @abstractmethod
    def loss(self, batch: Batch, random: torch.Generator) -> Tensor:
        """Return the mean training loss of a batch, rows that are not valid left out."""

    @abstractmethod
    def sample(self, encoded: Tensor, count: int, random: torch.Generator) -> Tensor:
        """
        Return normalised chunks (count, H, A) for one encoded input (1, E); the first is the
        decision.
        """

    def encode_inputs(self, values: Tensor) -> Tensor:
        """Return normalised network inputs (B, E) of raw ones (B, I)."""
        mean, std = self._input_scale
        encoded = (values @ self._encoding - mean) / std
        return encoded.clamp(-inputs.MAX_DEVIATION, inputs.MAX_DEVIATION)

    def scale_actions(self, actions: Tensor) -> Tensor:
        """Return rows (..., A) as the network sees them."""
        mean, std = self._action_scale
        return (actions - mean) / std

    def unscale_actions(self, actions: Tensor) -> Tensor:
        """Return rows (..., A) in policy units, the inverse of :meth:`scale_actions`."""
        mean, std = self._action_scale
        return actions * std + mean

    def act(self, observation: Observation, request: ChunkRequest) -> ActionChunk:
        """Answer with one chunk; see :meth:`Policy.act`."""
        values = observation.vector(self.spec.input_names)
        inputs.check_known(self.spec.input_names, values)
        wanted = request.n_samples if 'samples' in self.capabilities else 1
        with torch.inference_mode():
            encoded = self.encode_inputs(torch.from_numpy(values)[None])
            rows = self.unscale_actions(self.sample(encoded, max(wanted, 1), self._random))
        chunks = self._clip(rows.numpy())
        return self.chunk(observation, request, chunks[0], chunks if wanted > 1 else None)

    def reset(self, seed: int) -> None:
        """Start the sampler's random numbers from ``seed``."""
        self._random.manual_seed(seed % 2**63)

    def _clip(self, chunks: F32) -> F32:
        # np.clip would let a NaN pass, and an infinity become a bound that looks like an answer.
        if not np.all(np.isfinite(chunks)):
            raise InvalidDataError(
                f'policy {self.spec.policy} {self.spec.name}: the network answered with numbers '
                'that are not finite'
            )
        return np.clip(chunks, *self._bounds).astype(np.float32)


def masked_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of (B, H, A) over valid rows (B, H) and all columns."""
    return (values * valid[..., None]).sum() / (valid.sum() * values.shape[-1]).clamp(min=1.0)
