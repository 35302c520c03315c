"""What policies with a network share: reading an observation, scaling, checking the answer."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from chunkpilot_core import config as configs
from chunkpilot_core.errors import ConfigError, InvalidDataError, UnknownNameError
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.policies.runtime import inputs, prefix
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


@dataclass(frozen=True, slots=True)
class Guide:
    """
    Rows that a chunk is to continue.

    ``rows`` (H, A) normalised, ``weights`` (H, 1) how strongly each is held on to, 0 to 1;
    ``limit`` the largest gain; ``jacobian`` whether the pull goes through the network's
    derivative.
    """

    rows: Tensor
    weights: Tensor
    limit: float
    jacobian: bool

    def gain(self, time: float) -> float:
        """Return how strongly to pull at a flow time from 0 to below 1, 2506.07339 equation 2."""
        if time <= 0.0:
            return self.limit
        rest = 1.0 - time
        return min(rest / time * (time**2 + rest**2) / rest**2, self.limit)


GUIDANCE = ('jacobian', 'identity')


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
        self.spec = replace(spec, capabilities=self._offered(spec))
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

    def _offered(self, spec: PolicySpec) -> tuple[str, ...]:
        """Return what a policy with these inputs can do of what its class can."""
        foreseeable = prefix.foreseeable(spec.space, spec.input_names)
        return tuple(name for name in self.capabilities if name != 'future_state' or foreseeable)

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

    def varied(self, options: Mapping[str, Any]) -> 'NetPolicy':
        """
        Return the same policy with other options, e.g. of how it samples.

        :raises ConfigError: unknown, out of range, or one that another network is needed for
        """
        where = f'{self.spec.policy}.'
        config = configs.build(type(self.config), {**asdict(self.config), **options}, where)
        other = type(self)(config, self.spec, self.normalizer)
        weights = self.net.state_dict()
        shapes = [(name, value.shape) for name, value in weights.items()]
        if shapes != [(name, value.shape) for name, value in other.net.state_dict().items()]:
            words = ', '.join(f'{name}={value}' for name, value in options.items())
            raise ConfigError(f'{self.spec.policy}: {words}: these weights are of another network')
        other.net.load_state_dict(weights)
        return other

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

    def guided(self, encoded: Tensor, count: int, random: torch.Generator, guide: Guide) -> Tensor:
        """
        Return what :meth:`sample` does, pulled to the rows of a guide.

        :raises InvalidDataError: the policy does not offer 'guidance'
        """
        raise InvalidDataError(
            f'policy {self.spec.policy} {self.spec.name}: asked for guidance, which it does not '
            'offer'
        )

    def act(self, observation: Observation, request: ChunkRequest) -> ActionChunk:
        """Answer with one chunk; see :meth:`Policy.act`."""
        prefix.check(self.spec.space, request)
        names = self.spec.input_names
        values = observation.vector(names)
        inputs.check_known(names, values)
        if request.state_at_start:
            self._check_foresight()
            stamp_ns = observation.stamp_ns
            values = prefix.at_start(self.spec.space, names, values, request, stamp_ns)
        count = max(request.n_samples if 'samples' in self.capabilities else 1, 1)
        guide = self._guide(observation, request)
        # A guide may need derivatives, which tensors of the inference mode never have.
        with torch.inference_mode() if guide is None else torch.no_grad():
            encoded = self.encode_inputs(torch.from_numpy(values)[None])
            if guide is None:
                normalised = self.sample(encoded, count, self._random)
            else:
                normalised = self.guided(encoded, count, self._random, guide)
            rows = self.unscale_actions(normalised)
        chunks = self._clip(rows.numpy())
        return self.chunk(observation, request, chunks[0], chunks if count > 1 else None)

    def _guide(self, observation: Observation, request: ChunkRequest) -> Guide | None:
        if not request.guidance:
            return None
        if request.guidance not in GUIDANCE:
            raise UnknownNameError('guidance', request.guidance, GUIDANCE)
        start_ns = self.start_ns(observation, request)
        rows, weights = prefix.guidance(self.spec, request, start_ns)
        return Guide(
            self.scale_actions(torch.from_numpy(rows)),
            torch.from_numpy(weights)[:, None],
            request.guidance_limit,
            request.guidance == 'jacobian',
        )

    def _check_foresight(self) -> None:
        if 'future_state' not in self.spec.capabilities:
            raise InvalidDataError(
                f'policy {self.spec.policy} {self.spec.name}: asked to start from a future state, '
                f'which its inputs do not allow: {", ".join(self.spec.input_names)}'
            )

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
