"""
The line of versions that a learner writes: numbered upwards for ever, whole or not there at all.

Folder: ``<root>/<policy name>/v000002/`` and so on, each a checkpoint; version 1 is the base and
stays where it was. A number is never used twice, even when its folder turns out to be damaged.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
import re
from typing import Any

from chunkpilot_core.errors import CheckpointError
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from chunkpilot_core.types import PolicyVersion

_FOLDER = re.compile(r'v(\d{6,})')


class VersionStore:
    """Reads and writes the versions of one policy."""

    def __init__(self, root: str | Path, base: str | Path) -> None:
        """
        Open the line of versions that starts with a checkpoint.

        :param root: folder of all lines
        :param base: folder or bare name of the first version
        :raises CheckpointError: the base cannot be loaded
        """
        self._base_path = checkpoint.find(base)
        self.base = checkpoint.load(self._base_path)
        self._base_sha256 = checkpoint.read_manifest(self._base_path)['weights_sha256']
        self._folder = Path(root).expanduser() / self.base.spec.name
        self.damaged: dict[str, str] = {}
        self.newest, self.policy = self._resume()

    def write(
        self,
        policy: NetPolicy,
        *,
        accepted: bool,
        reason: str,
        metrics: Mapping[str, float],
        trained: Mapping[str, object],
    ) -> PolicyVersion:
        """
        Write the next version.

        :param policy: its version is set here
        :raises CheckpointError: the disk is full or the folder can't be written; nothing is left
        """
        number = self._highest() + 1
        parent = self.newest.version
        policy.spec = replace(policy.spec, version=number)
        path = self._folder / f'v{number:06d}'
        verdict = {'accepted': accepted, 'reason': reason, 'base_sha256': self._base_sha256}
        checkpoint.save(
            policy, path, parent=parent, trained={**trained, **verdict}, metrics=metrics
        )
        written = _describe(path)
        if accepted:
            self.newest, self.policy = written, policy
        return written

    def _resume(self) -> tuple[PolicyVersion, NetPolicy]:
        """Return the newest accepted version that is whole and of the base's kind."""
        for path in sorted(self._folders(), key=_number, reverse=True):
            try:
                found = _describe(path)
                if not found.accepted:
                    continue
                policy = checkpoint.load(path)
                self._check(policy, checkpoint.read_manifest(path))
                return found, policy
            except CheckpointError as error:
                self.damaged[path.name] = str(error)
        return _describe(self._base_path), self.base

    def _check(self, policy: NetPolicy, manifest: Mapping[str, Any]) -> None:
        ours, theirs = self.base.spec, policy.spec
        for name in ('policy', 'name', 'input_names', 'horizon', 'dt_s', 'space'):
            if getattr(ours, name) != getattr(theirs, name):
                raise CheckpointError(
                    f'made for another base: {name} is {getattr(theirs, name)!r}, '
                    f'the base has {getattr(ours, name)!r}'
                )
        if policy.normalizer.sha256 != self.base.normalizer.sha256:
            raise CheckpointError('made for another base: the normaliser differs')
        if manifest['trained'].get('base_sha256') != self._base_sha256:
            raise CheckpointError('made for another base: its weights differ')

    def _highest(self) -> int:
        numbers = [_number(path) for path in self._folders()]
        return max([self.base.spec.version, *numbers])

    def _folders(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if _FOLDER.fullmatch(path.name)]


def _number(path: Path) -> int:
    return int(path.name[1:])


def _describe(path: Path) -> PolicyVersion:
    manifest = checkpoint.read_manifest(path)
    trained = manifest.get('trained', {})
    try:
        return PolicyVersion(
            str(manifest['spec']['policy']),
            int(manifest['spec']['version']),
            int(manifest['parent']),
            str(path.resolve()),
            str(manifest['weights_sha256']),
            str(manifest['normalizer_sha256']),
            bool(trained.get('accepted', True)),
            str(trained.get('reason', 'base')),
            {name: float(value) for name, value in manifest.get('metrics', {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f'{path}: manifest is wrong: {error!r}') from error
