"""The recipe of every training: episodes in, a trained policy, its figures and a report out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import hashlib
from pathlib import Path
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.policies.runtime import dataset, inputs, training, training_report
from chunkpilot_core.policies.runtime.dataset import Dataset
from chunkpilot_core.policies.runtime.demonstrations import Episode
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from chunkpilot_core.types import ActionSpace, PolicySpec
import torch

HORIZON = 16
DT_S = 0.04
AGE_S = 0.5  # [s] that the observation may be old when the last row begins, beside the chunk
HELD_OUT = 20  # one episode of so many is not trained on
PATIENCE = 10  # points of the curve, 5,000 updates


@dataclass(frozen=True, slots=True)
class Material:
    """
    What a policy is trained on, wherever it comes from.

    ``names`` (I,) of the inputs; ``data``: chunks of all E episodes, ``keys`` (E,) tells these
    apart; ``source``: what the manifest says about where they come from.
    """

    names: tuple[str, ...]
    data: Dataset
    keys: tuple[str, ...]
    space: ActionSpace
    dt_s: float
    task_kind: str
    source: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trained:
    """A policy, the figures for its manifest, and the report (see :mod:`training_report`)."""

    policy: NetPolicy
    metrics: Mapping[str, float]
    report: Mapping[str, Any]


def input_names(names: Sequence[str]) -> tuple[str, ...]:
    """
    Choose what a policy reads of what perception supplies: tool, gripper, objects, goal.

    Joint angles say nothing more at a fixed tool orientation; with ages a policy would learn to
    read the camera's clock.
    """
    return tuple(
        name
        for name in names
        if name == 'gripper.width'
        or (name.startswith(('ee.', 'object', 'goal')) and not name.endswith('.age'))
    )


def demonstrated(task: str, episodes: Sequence[Episode], horizon: int = HORIZON) -> Material:
    """
    Return the scripted demonstrations that succeeded as material.

    :param horizon: H, rows of a chunk
    :raises InvalidDataError: fewer than two
    """
    good = [episode for episode in episodes if episode.success]
    if len(good) < 2:
        raise InvalidDataError(f'{len(good)} of {len(episodes)} demonstrations succeeded, need 2')
    names = input_names(good[0].names)
    cut = [(episode.select(names), episode.rows, episode.disturbed) for episode in good]
    data = dataset.from_episodes(cut, horizon)
    source = {
        'scenes': [episodes[0].seed, episodes[-1].seed],
        'episodes': len(episodes),
        'demonstrations_sha256': data.sha256,
    }
    keys = tuple(str(episode.seed) for episode in good)
    return Material(names, data, keys, spaces.ee_delta_space(), DT_S, task, source)


def split(data: Dataset, keys: Sequence[str]) -> tuple[Dataset, Dataset, list[int]]:
    """
    Divide by episodes: most for training, one of ``HELD_OUT`` and at least one for validation.

    Whether an episode is held out depends on its key, not on its place: those held out mostly
    stay so when others are added.

    :returns: training, validation, the numbers of the episodes that are held out
    :raises InvalidDataError: fewer than two episodes have chunks
    """
    usable = data.episodes()
    if len(usable) < 2:
        raise InvalidDataError(
            f'{len(usable)} of {len(keys)} episodes can be learned from, need 2'
        )
    ranked = sorted(usable, key=lambda number: hashlib.sha256(keys[number].encode()).digest())
    held_out = sorted(ranked[: max(round(len(ranked) / HELD_OUT), 1)])
    kept = sorted(set(usable) - set(held_out))
    return data.only(kept), data.only(held_out), held_out


def train(
    plugin: type[NetPolicy],
    settings: Any,
    spec_name: str,
    material: Material,
    seed: int,
    *,
    patience: int = PATIENCE,
    state_file: Path | None = None,
    progress: training.Progress | None = None,
) -> Trained:
    """
    Train a policy of a plug-in.

    :param settings: the plug-in's ``Config``
    :param spec_name: name of the checkpoint
    :param patience: see :func:`training.train`, as are the others
    :raises InvalidDataError: nothing to train on or to hold out
    """
    kept, held_out, episodes = split(material.data, material.keys)
    normalizer = inputs.fit_blocks(material.names, kept.blocks())
    torch.set_num_threads(1)  # in networks this small a second thread costs more than it brings
    torch.manual_seed(seed)
    policy = plugin(settings, _spec(plugin, spec_name, material), normalizer)
    history = training.train(
        policy,
        kept,
        seed,
        validation=held_out,
        patience=patience,
        state_file=state_file,
        progress=progress,
    )
    report = training_report.make(policy, held_out, history, seed)
    report['validation_episodes'] = [material.keys[number] for number in episodes]
    report['episodes'] = len(kept.episodes()) + len(episodes)
    metrics = {
        'loss': history.loss,
        'held_out_loss': history.validation,
        'demonstrations': report['episodes'],
        'chunks': len(kept),
        'updates': history.updates,
        'kept_update': history.kept,
    }
    return Trained(policy, metrics, report)


def _spec(plugin: type[NetPolicy], name: str, material: Material) -> PolicySpec:
    horizon = material.data.horizon
    return PolicySpec(
        policy=plugin.__module__.rpartition('.')[2],
        name=name,
        version=1,
        space=material.space,
        horizon=horizon,
        dt_s=material.dt_s,
        input_names=material.names,
        task_kind=material.task_kind,
        max_row_age_s=horizon * material.dt_s + AGE_S,
    )


def provenance(material: Material, seed: int, command: str) -> dict[str, Any]:
    """Return what a manifest says about how a policy was made."""
    return {
        'command': command,
        'seed': seed,
        **material.source,
        'torch': str(torch.__version__),
    }
