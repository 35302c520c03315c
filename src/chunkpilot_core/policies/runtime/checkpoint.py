"""
Checkpoints: a folder with ``manifest.json`` and ``weights.safetensors``, nothing else is read.

The manifest says what the policy is, what its rows mean and how it was made; hashes tie it to the
weights and the normaliser. Nothing is unpickled. A checkpoint is written beside its place and
renamed, so it is there whole or not.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
import hashlib
import json
import os
from pathlib import Path
import shutil
from typing import Any

from chunkpilot_core import config, registry, robot, spaces
from chunkpilot_core.errors import CheckpointError, ChunkpilotError, UnknownNameError
from chunkpilot_core.files import sync
from chunkpilot_core.policies.runtime.inputs import Normalizer
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from chunkpilot_core.types import (
    MAX_HORIZON,
    PolicySpec,
)
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
import torch

FORMAT = 'chunkpilot.policy/1'
MANIFEST = 'manifest.json'
WEIGHTS = 'weights.safetensors'
MAX_NAME = 100
MAX_WEIGHTS_BYTES = 2**31  # a file named by mistake must not fill the memory


def save(
    policy: NetPolicy,
    path: str | Path,
    *,
    parent: int = 0,
    trained: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> PolicySpec:
    """
    Write a checkpoint; its version and name are the spec's.

    :param path: folder to make; an older checkpoint there is replaced
    :param parent: version that it was trained from, 0 = from scratch
    :param trained: how it was made: command, seeds, hash of the data, ...
    :param metrics: what was measured
    :param beside: files for people by name, e.g. a report; nothing reads them
    :returns: the spec with the manifest's hash
    :raises CheckpointError: the folder can't be written, or holds something that is no checkpoint,
        or the spec's name is no file name
    """
    check_name(policy.spec.name)
    weights = save_tensors(
        {name: value.contiguous() for name, value in policy.net.state_dict().items()}
    )
    manifest = {
        'format': FORMAT,
        'spec': _spec_to_json(policy.spec),
        'parent': parent,
        'config': asdict(policy.config),
        'normalizer': asdict(policy.normalizer),
        'normalizer_sha256': policy.normalizer.sha256,
        'weights_sha256': hashlib.sha256(weights).hexdigest(),
        'trained': dict(trained or {}),
        'metrics': dict(metrics or {}),
    }
    text = (json.dumps(manifest, indent=1) + '\n').encode()
    _write_folder(Path(path), {**(beside or {}), MANIFEST: text, WEIGHTS: weights})
    return replace(policy.spec, manifest_sha256=hashlib.sha256(text).hexdigest())


def load(path: str | Path, *, sha256: str = '') -> NetPolicy:
    """
    Read and verify a checkpoint.

    :param path: its folder, or the bare name of one in config/policies
    :param sha256: hash that the weights must have, '' = what the manifest says
    :raises CheckpointError: missing, damaged, or not made for this program; the message says what
        is wrong
    """
    folder = find(path)
    raw = _read(folder / MANIFEST)
    manifest = _parse(folder, raw)
    try:
        for key in ('spec', 'config', 'normalizer'):
            if not isinstance(manifest[key], dict):
                raise CheckpointError(f'{MANIFEST}: {key} {manifest[key]!r}: must be an object')
        weights = _verified_weights(folder, manifest, sha256)
        policy = _build(manifest, hashlib.sha256(raw).hexdigest())
        _restore(policy, weights)
    except CheckpointError as error:
        raise CheckpointError(f'{folder}: {error}') from error
    except KeyError as error:
        raise CheckpointError(f'{folder}: manifest lacks {error.args[0]!r}') from error
    except (TypeError, ValueError, AttributeError, ChunkpilotError) as error:
        raise CheckpointError(f'{folder}: manifest is wrong: {error}') from error
    return policy


def read_manifest(path: str | Path) -> dict[str, Any]:
    """
    Return the manifest of a checkpoint without loading its weights.

    :raises CheckpointError: missing or unreadable
    """
    folder = find(path)
    return _parse(folder, _read(folder / MANIFEST))


def find(path: str | Path) -> Path:
    """
    Return the folder of a checkpoint given by path or bare name.

    :raises CheckpointError: not there; names the checkpoints that are, and the nearest
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.parent == Path() and str(path):
        shipped = robot.config_dir() / 'policies'
        if (shipped / folder).is_dir():
            return shipped / folder
        known = [entry.parent.name for entry in shipped.glob(f'*/{MANIFEST}')]
        raise CheckpointError(str(UnknownNameError('checkpoint', str(path), known)))
    raise CheckpointError(f'{path or "(empty path)"}: no such checkpoint folder')


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > MAX_WEIGHTS_BYTES:
            raise CheckpointError(
                f'{file}: {file.stat().st_size} bytes, at most {MAX_WEIGHTS_BYTES}'
            )
        return file.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f'{file.parent}: no {file.name}; is this a checkpoint?') from None
    except OSError as error:
        raise CheckpointError(f'{file}: {error}') from error


def _parse(folder: Path, raw: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f'{folder / MANIFEST}: damaged: {error}') from error
    found = manifest.get('format') if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise CheckpointError(f'{folder / MANIFEST}: format {found!r}, must be {FORMAT!r}')
    return dict(manifest)


def _verified_weights(
    folder: Path, manifest: dict[str, Any], sha256: str
) -> dict[str, torch.Tensor]:
    raw = _read(folder / WEIGHTS)
    found = hashlib.sha256(raw).hexdigest()
    stated = manifest['weights_sha256']
    for source, wanted in (('the manifest', stated), ('the caller', sha256 or found)):
        if found != wanted:
            raise CheckpointError(
                f'{WEIGHTS} ({len(raw)} bytes) has sha256 {found}, {source} says {wanted}'
            )
    try:
        return load_tensors(raw)
    except SafetensorError as error:
        raise CheckpointError(f'{WEIGHTS}: {error}') from error


def _build(manifest: dict[str, Any], manifest_sha256: str) -> NetPolicy:
    spec = replace(_spec_from_json(manifest['spec']), manifest_sha256=manifest_sha256)
    cls = registry.get('policies', spec.policy)
    if not issubclass(cls, NetPolicy):
        raise CheckpointError(f'policy {spec.policy!r} has no weights to load')
    if spec.cameras and cls.act is NetPolicy.act:  # only an own act() can look at images
        raise CheckpointError(
            f'{MANIFEST}: spec: cameras {list(spec.cameras)}: must be [], {spec.policy!r} reads '
            'no images'
        )
    normalizer = Normalizer(
        **{key: tuple(map(float, value)) for key, value in manifest['normalizer'].items()}
    )
    if normalizer.sha256 != manifest['normalizer_sha256']:
        raise CheckpointError(
            f'normalizer has sha256 {normalizer.sha256}, the manifest says '
            f'{manifest["normalizer_sha256"]}'
        )
    return cls(config.build(cls.Config, manifest['config'], f'{spec.policy}.'), spec, normalizer)


def _restore(policy: NetPolicy, weights: dict[str, torch.Tensor]) -> None:
    own = policy.net.state_dict()
    if set(own) != set(weights):
        odd = sorted(set(own) ^ set(weights))
        raise CheckpointError(f'{WEIGHTS}: tensors do not match the network: {", ".join(odd)}')
    for name, value in weights.items():
        if value.shape != own[name].shape or value.dtype != own[name].dtype:
            raise CheckpointError(
                f'{WEIGHTS}: {name} is {value.dtype} {tuple(value.shape)}, the network needs '
                f'{own[name].dtype} {tuple(own[name].shape)}'
            )
        if not torch.isfinite(value).all():
            raise CheckpointError(f'{WEIGHTS}: {name} holds numbers that are not finite')
    policy.net.load_state_dict(weights)


def _spec_to_json(spec: PolicySpec) -> dict[str, Any]:
    data = asdict(spec)
    # The manifest can't hold its own hash, and what a policy can do is the program's to say.
    del data['manifest_sha256'], data['capabilities']
    return data


def _spec_from_json(data: Mapping[str, Any]) -> PolicySpec:
    known = {entry.name for entry in fields(PolicySpec)} - {'manifest_sha256', 'capabilities'}
    for name in data:
        if name not in known:
            raise UnknownNameError('entry of the spec', name, known)
    _check_spec(data)
    return PolicySpec(
        **{
            **data,
            'space': spaces.from_json(data['space']),
            'input_names': tuple(data['input_names']),
            'cameras': tuple(data['cameras']),
        }
    )


def _check_spec(data: Mapping[str, Any]) -> None:
    """Refuse entries of a wrong type or range before anything is built of them."""
    for name, (allowed, fits) in _ENTRIES.items():
        if name in _OPTIONAL and name not in data:
            continue
        if not fits(data[name]):
            raise CheckpointError(f'{MANIFEST}: spec: {name} {data[name]!r}: must be {allowed}')


def check_name(name: str) -> None:
    """
    Refuse a name that a checkpoint may not have.

    :raises CheckpointError: says what is allowed
    """
    if not _is_plain_name(name):
        raise CheckpointError(f'checkpoint name {name!r}: must be {_PLAIN_NAME}')


def _is_int(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_number(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high  # NaN compares false


def _is_plain_name(value: Any) -> bool:
    """Say whether it can name a file, in one folder only."""
    return (
        isinstance(value, str)
        and 1 <= len(value) <= MAX_NAME
        and value.isprintable()
        and '/' not in value
        and value not in ('.', '..')
    )


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name for name in value)


_PLAIN_NAME = f"the name of a file without '/', 1 to {MAX_NAME} characters, not '.' or '..'"
_OPTIONAL = ('task_kind', 'starts_at')
_ENTRIES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    'space': ('an object', lambda value: isinstance(value, dict)),
    'policy': ('the name of a plug-in', _is_plain_name),
    'name': (_PLAIN_NAME, _is_plain_name),
    'version': (
        'a whole number of 1 to 9223372036854775807',  # int64 of the messages
        lambda value: _is_int(value, 1, 2**63 - 1),
    ),
    'horizon': (
        f'a whole number of 1 to {MAX_HORIZON}',
        lambda value: _is_int(value, 1, MAX_HORIZON),
    ),
    'dt_s': ('a number of 0.0001 to 10', lambda value: _is_number(value, 1e-4, 10.0)),
    'input_names': ('a list of names', _is_names),
    'cameras': ('a list of names', _is_names),
    'task_kind': (
        "'' or the name of a task",
        lambda value: value == '' or _is_plain_name(value),
    ),
    'starts_at': (
        "'observation' or 'request'",
        lambda value: isinstance(value, str) and value in ('observation', 'request'),
    ),
    'max_row_age_s': (
        'a number above 0, at most 3600',
        lambda value: _is_number(value, 1e-9, 3600.0),
    ),
}


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise CheckpointError(f'{folder}: exists and is no checkpoint, not replaced')
    beside = folder.with_name(f'.{folder.name}.{os.getpid()}.new')
    old = folder.with_name(f'.{folder.name}.{os.getpid()}.old')
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        for name, content in files.items():
            with open(beside / name, 'wb') as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if folder.exists():
            folder.rename(old)
        beside.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise CheckpointError(f'{folder}: can not be written: {error}') from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
