"""
The file of a per-row corrector: a small perceptron and what it reads, as ``.safetensors``.

Tensors, all float32: ``0.weight`` (O, I), ``0.bias`` (O,), ``1.weight`` and so on, tanh between
the layers; the first reads the named observation entries, scaled by ``input_mean`` and
``input_std`` (both of their number), followed by the row (A,) in policy units; the last returns a
correction (A,) in policy units, which is clipped to ``bound`` (A,), at least 0. Metadata:
``format`` ``chunkpilot.corrector/1``, ``inputs``, a JSON list of entries, and ``space_hash``, that
of the action space. Read without the safetensors package, which control-rate processes need not
have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any

from chunkpilot_core import files
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.types import ActionSpace, F32
import numpy as np

FORMAT = 'chunkpilot.corrector/1'


@dataclass(frozen=True)
class Corrector:
    """Layers of weights (O, I) and biases (O,), and the scaling around them."""

    inputs: tuple[str, ...]
    space_hash: str
    layers: tuple[tuple[F32, F32], ...]
    mean: F32
    std: F32
    bound: F32

    def __call__(self, values: F32, row: F32) -> F32:
        """
        Return the correction (A,) of a row (A,), within its bound.

        :param values: the inputs, in their own units, finite
        """
        hidden: F32 = np.concatenate(((values - self.mean) / self.std, row))
        for i, (weight, bias) in enumerate(self.layers):
            hidden = weight @ (np.tanh(hidden) if i else hidden) + bias
        return np.clip(hidden, -self.bound, self.bound)

    def check(self, space: ActionSpace, input_names: tuple[str, ...]) -> None:
        """
        Refuse another space, or inputs that the policy does not have anyway.

        :raises ConfigError: naming what differs
        """
        if self.space_hash != space.hash:
            raise ConfigError(
                f'corrector is for action space {self.space_hash!r}, in force is {space.hash!r}'
            )
        self._check_shapes(space.size)
        unknown = [name for name in self.inputs if name not in input_names]
        if unknown:
            raise ConfigError(
                f'corrector reads {", ".join(unknown)}, the policy only {", ".join(input_names)}'
            )

    def _check_shapes(self, size: int) -> None:
        count = len(self.inputs)
        expected = {'input_mean': (self.mean, count), 'input_std': (self.std, count)}
        for name, (values, length) in {**expected, 'bound': (self.bound, size)}.items():
            if values.shape != (length,):
                raise ConfigError(
                    f'corrector: {name} has shape {values.shape}, expected ({length},)'
                )
        width = count + size
        for i, (weight, bias) in enumerate(self.layers):
            out = size if i == len(self.layers) - 1 else bias.size
            if weight.shape != (out, width) or bias.shape != (out,):
                raise ConfigError(
                    f'corrector: {i}.weight has shape {weight.shape} and {i}.bias {bias.shape}, '
                    f'expected ({out}, {width}) and ({out},)'
                )
            width = out


def load(path: str | Path) -> Corrector:
    """
    Read a corrector.

    :raises ConfigError: missing, damaged, of another format, or with numbers that make no sense
    """
    try:
        tensors, meta = _read(path)
        if meta.get('format') != FORMAT:
            raise ValueError(f'format {meta.get("format")!r}, must be {FORMAT!r}')
        names = files.parsed(meta['inputs'])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f'inputs {names!r}, must be a list of names')
        count = sum(name.endswith('.weight') for name in tensors)
        layers = tuple((tensors[f'{i}.weight'], tensors[f'{i}.bias']) for i in range(count))
        scaling = (tensors[name] for name in ('input_mean', 'input_std', 'bound'))
        found = Corrector(tuple(names), meta['space_hash'], layers, *scaling)
    except KeyError as error:
        raise ConfigError(f'corrector {path}: lacks {error.args[0]!r}') from None
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f'corrector {path}: {error}') from error
    if not layers or np.any(found.std <= 0.0) or np.any(found.bound < 0.0):
        raise ConfigError(
            f'corrector {path}: at least one layer, input_std above 0 and bound at least 0 needed'
        )
    return found


def _read(path: str | Path) -> tuple[dict[str, F32], Mapping[str, str]]:
    """Return tensors and metadata of a safetensors file."""
    raw = files.read(path)
    start = 8 + int.from_bytes(raw[:8], 'little')
    header: dict[str, Any] = files.parsed(raw[8:start])
    if not isinstance(header, dict):
        raise ValueError('damaged: no header')
    meta = header.pop('__metadata__', {})
    if not isinstance(meta, dict):
        raise ValueError(f'damaged: metadata {meta!r}')
    return {name: _tensor(name, entry, raw[start:]) for name, entry in header.items()}, meta


def _tensor(name: str, entry: Mapping[str, Any], data: bytes) -> F32:
    if entry['dtype'] != 'F32':
        raise ValueError(f'{name} is of type {entry["dtype"]}, must be F32')
    shape, (first, stop) = [int(length) for length in entry['shape']], entry['data_offsets']
    if not 0 <= first <= stop <= len(data) or stop - first != 4 * math.prod(shape):
        raise ValueError(f'damaged: {name} of shape {shape} at bytes {first} to {stop}')
    values: F32 = np.frombuffer(data[first:stop], '<f4').reshape(shape).astype(np.float32)
    if not np.all(np.isfinite(values)):
        raise ValueError(f'{name} holds numbers that are not finite')
    return values
