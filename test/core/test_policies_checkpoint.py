"""
Checkpoints: what was saved is what loads, and whatever is wrong with one is said, not loaded.
"""

from dataclasses import replace
import hashlib
import json
from pathlib import Path

from chunkpilot_core import registry, spaces
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import CheckpointError
from chunkpilot_core.policies.runtime import checkpoint, inputs, serving
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from chunkpilot_core.types import PolicySpec
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
import torch

NAMES = ('ee.x', 'object.x', 'goal.x')
SHIPPED = sorted(
    path.parent for path in (robots.config_dir() / 'policies').glob('*/manifest.json')
)


def make_policy(plugin: str = 'mlp') -> NetPolicy:
    torch.manual_seed(1)
    cls = registry.get('policies', plugin)
    spec = PolicySpec(
        plugin, 'example', 2, spaces.ee_delta_space(), 16, 0.04, NAMES, (), 'reach', 'observation',
        cls.capabilities, 1.14,
    )  # fmt: skip
    values = np.random.default_rng(0).normal(size=(50, len(NAMES))).astype(np.float32)
    rows = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    return cls(replace(cls.Config(), width=16), spec, inputs.fit(NAMES, values, rows))


@pytest.fixture(name='saved')
def _saved(tmp_path: Path) -> Path:
    checkpoint.save(make_policy(), tmp_path / 'example')
    return tmp_path / 'example'


def edit(folder: Path, *keys: str, to: object) -> None:
    """Change one entry of the manifest."""
    manifest = json.loads((folder / 'manifest.json').read_text())
    entry = manifest
    for key in keys[:-1]:
        entry = entry[key]
    entry[keys[-1]] = to
    (folder / 'manifest.json').write_text(json.dumps(manifest))


def rehash(folder: Path) -> None:
    """Make the manifest agree with the weights, as somebody who tampers would."""
    found = hashlib.sha256((folder / 'weights.safetensors').read_bytes()).hexdigest()
    edit(folder, 'weights_sha256', to=found)


def refuse(folder: Path, *said: str) -> None:
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(folder)
    for text in (str(folder), *said):
        assert text in str(error.value)


@pytest.mark.parametrize('plugin', registry.names('policies'))
def test_round_trip(plugin: str, tmp_path: Path) -> None:
    policy = make_policy(plugin)
    spec = checkpoint.save(
        policy, tmp_path / 'a' / 'b', parent=1, trained={'seed': 5}, metrics={'loss': 0.5}
    )
    loaded = checkpoint.load(tmp_path / 'a' / 'b')
    assert loaded.spec == spec
    assert replace(loaded.spec, manifest_sha256='') == policy.spec
    assert (loaded.config, loaded.normalizer) == (policy.config, policy.normalizer)
    observation, request = serving.example(spec)
    for one in (policy, loaded):
        one.reset(3)
    np.testing.assert_array_equal(
        policy.act(observation, request).actions, loaded.act(observation, request).actions
    )
    manifest = checkpoint.read_manifest(tmp_path / 'a' / 'b')
    assert (manifest['parent'], manifest['trained'], manifest['metrics']) == (
        1, {'seed': 5}, {'loss': 0.5},
    )  # fmt: skip
    assert [path.name for path in (tmp_path / 'a').iterdir()] == ['b']  # nothing left beside it


def test_a_newer_version_replaces_an_older_one(saved: Path) -> None:
    policy = make_policy()
    policy.spec = replace(policy.spec, version=3)
    checkpoint.save(policy, saved)
    assert checkpoint.load(saved).spec.version == 3


def test_never_overwrites_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / 'thesis.txt').write_text('years of work')
    with pytest.raises(CheckpointError, match='is no checkpoint'):
        checkpoint.save(make_policy(), tmp_path)
    assert (tmp_path / 'thesis.txt').read_text() == 'years of work'


def test_a_wrong_name_lists_the_shipped_ones_and_the_nearest() -> None:
    with pytest.raises(CheckpointError, match="unknown checkpoint 'mlp_pick_and_plce'"):
        checkpoint.load('mlp_pick_and_plce')
    with pytest.raises(CheckpointError, match='no such checkpoint folder'):
        checkpoint.load('/nowhere/at/all')
    with pytest.raises(CheckpointError):
        checkpoint.load('')


def test_a_folder_without_manifest_or_weights(saved: Path, tmp_path: Path) -> None:
    (tmp_path / 'empty').mkdir()
    refuse(tmp_path / 'empty', 'no manifest.json')
    (saved / 'weights.safetensors').unlink()
    refuse(saved, 'no weights.safetensors')


@pytest.mark.parametrize('damage', ['truncated', 'one bit', 'empty', 'another'])
def test_damaged_weights(saved: Path, damage: str) -> None:
    file = saved / 'weights.safetensors'
    raw = bytearray(file.read_bytes())
    raw[-7] ^= 1
    content = {'truncated': raw[:-50], 'one bit': raw, 'empty': b'', 'another': b'\x80\x04.'}
    file.write_bytes(content[damage])
    refuse(saved, 'weights.safetensors', 'sha256')


@pytest.mark.parametrize(
    'content', [b'', b'{"format": ', b'[]', b'\xff\xfe', b'{"format": "x/9"}', b'[' * 10**5]
)
def test_damaged_manifest(saved: Path, content: bytes) -> None:
    (saved / 'manifest.json').write_bytes(content)
    refuse(saved, 'manifest.json')


def test_tampered_weights_whose_hash_was_made_to_fit(saved: Path) -> None:
    file = saved / 'weights.safetensors'
    whole = load_file(file)
    name = next(iter(whole))
    for changed, said in (
        ({key: value for key, value in whole.items() if key != name}, name),
        (whole | {'extra': torch.zeros(1)}, 'extra'),
        (whole | {name: torch.zeros(3, 3)}, '(3, 3)'),
        (whole | {name: whole[name].double()}, 'float64'),
        (whole | {name: torch.full_like(whole[name], float('nan'))}, 'not finite'),
    ):
        save_file(changed, file)
        rehash(saved)
        refuse(saved, said)
    file.write_bytes(b'\x80\x04\x95 a pickle, say')
    rehash(saved)
    refuse(saved, 'weights.safetensors')


def test_weights_other_than_asked_for(saved: Path) -> None:
    with pytest.raises(CheckpointError, match='the caller says'):
        checkpoint.load(saved, sha256='0' * 64)


@pytest.mark.parametrize(
    ('keys', 'value', 'said'),
    [
        (('spec', 'policy'), 'mpl', "Did you mean 'mlp'"),
        (('spec', 'horizon'), 0, 'horizon 0'),
        (('spec', 'horizon'), 8, 'the network needs'),
        (('spec', 'dt_s'), -0.04, 'dt_s -0.04'),
        (('spec', 'max_row_age_s'), 0.0, 'max_row_age_s'),
        *((('spec', 'version'), value, 'version') for value in (2**63, 1.5, True, 0, '2')),
        *((('spec', 'horizon'), value, 'horizon') for value in ('16', 10**9, 16.0)),
        *((('spec', 'name'), value, 'name') for value in ('../../evil', '', '..', 'a/b', 3)),
        *((('spec', 'dt_s'), value, 'dt_s') for value in ('0.04', float('nan'), 100.0)),
        (('spec', 'max_row_age_s'), float('inf'), 'max_row_age_s inf: must be a number above 0'),
        (('spec', 'task_kind'), ['x'], "task_kind ['x']: must be"),
        (('spec', 'starts_at'), 'noon', "'observation' or 'request'"),
        (('spec', 'cameras'), 'front', "cameras 'front': must be a list"),
        (('spec', 'cameras'), ['nope'], "cameras ['nope']: must be []"),
        (('spec', 'input_names'), [1], 'input_names [1]'),
        (('spec', 'colour'), 'red', "'colour'"),
        (('spec', 'input_names'), ['ee.x'], 'normalizer'),
        (('spec', 'space', 'upper'), [2.0, 1.0, 1.0, 1.0], 'hash'),
        (('spec', 'space', 'lower'), [2.0, -1.0, -1.0, -1.0], 'lower'),
        (('spec', 'space', 'groups'), [], 'wrong'),
        (('config', 'width'), 17, 'the network needs'),
        (('config', 'width'), 'wide', 'width'),
        (('config', 'wdth'), 16, "Did you mean 'mlp.width'"),
        (('normalizer', 'action_std'), [1.0, 1.0, 1.0, 2.0], 'normalizer'),
        (('normalizer_sha256',), 'x', 'normalizer'),
        (('weights_sha256',), 5, 'the manifest says 5'),
        (('weights_sha256',), '', 'the manifest says'),
        (('weights_sha256',), None, 'the manifest says None'),
        (('spec', 'space'), None, 'space None: must be an object'),
        *(((key,), [1], f'{key} [1]: must be') for key in ('spec', 'config', 'normalizer')),
    ],
)
def test_a_manifest_that_does_not_fit(
    saved: Path, keys: tuple[str, ...], value: object, said: str
) -> None:
    edit(saved, *keys, to=value)
    refuse(saved, said)


@pytest.mark.parametrize('key', ['spec', 'config', 'normalizer', 'weights_sha256'])
def test_a_manifest_that_lacks_an_entry(saved: Path, key: str) -> None:
    manifest = json.loads((saved / 'manifest.json').read_text())
    del manifest[key]
    (saved / 'manifest.json').write_text(json.dumps(manifest))
    refuse(saved, f'manifest lacks {key!r}')


def test_a_version_other_than_asked_for(saved: Path) -> None:
    def clock_ns() -> int:
        return 0

    assert serving.prepare(saved, 2, '', clock_ns)[0].spec.version == 2
    with pytest.raises(CheckpointError, match='version 2, asked for 4'):
        serving.prepare(saved, 4, '', clock_ns)


def test_a_policy_that_fails_its_self_test(tmp_path: Path) -> None:
    policy = make_policy()
    with torch.no_grad():
        for parameter in policy.net.parameters():
            parameter.fill_(3e38)  # finite, but what comes out is not
    checkpoint.save(policy, tmp_path / 'broken')
    with pytest.raises(CheckpointError, match='fails its self-test'):
        serving.prepare(tmp_path / 'broken', 0, '', lambda: 0)


@pytest.mark.parametrize('folder', SHIPPED, ids=lambda folder: folder.name)
def test_shipped_checkpoints_are_small_whole_and_reproducible(folder: Path) -> None:
    policy, _ = serving.prepare(folder.name, 0, '', lambda: 0)
    assert policy.spec.name == folder.name
    assert policy.spec.space.hash == spaces.ee_delta_space().hash
    rows = 50 if '50_' in folder.name else 16
    assert (policy.spec.horizon, policy.spec.dt_s) == (rows, 0.04)
    largest = 1_100_000 if rows == 16 else 1_300_000
    largest = {'act': 1_500_000, 'diffusion': 1_800_000}.get(policy.spec.policy, largest)
    assert sum(file.stat().st_size for file in folder.iterdir()) < largest
    command = checkpoint.read_manifest(folder)['trained']['command']
    assert command.startswith('chunkpilot train --policy')
    assert f'--out config/policies/{folder.name}' in command
