"""The recipe of the shipped policies: demonstrations in, a trained policy and its figures out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.policies.runtime import inputs, training
from chunkpilot_core.policies.runtime.demonstrations import Episode
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from chunkpilot_core.types import PolicySpec
import numpy as np
import torch

HORIZON = 16
DT_S = 0.04
MAX_ROW_AGE_S = HORIZON * DT_S + 0.5
HELD_OUT = 20  # one episode of so many is not trained on


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


def train(
    plugin: type[NetPolicy],
    settings: Any,
    spec_name: str,
    task: str,
    episodes: Sequence[Episode],
    seed: int,
    *,
    state_file: Path | None = None,
    progress: training.Progress | None = None,
) -> tuple[NetPolicy, dict[str, float]]:
    """
    Train a policy of a plug-in on the demonstrations that succeeded.

    :param settings: the plug-in's ``Config``
    :param spec_name: name of the checkpoint
    :param state_file: see :func:`training.train`
    :returns: the policy and its losses
    :raises InvalidDataError: fewer than two successful demonstrations
    """
    good = [episode for episode in episodes if episode.success]
    if len(good) < 2:
        raise InvalidDataError(f'{len(good)} of {len(episodes)} demonstrations succeeded, need 2')
    names = input_names(good[0].names)
    cut = [(episode.select(names), episode.rows, episode.disturbed) for episode in good]
    held_out = cut[::HELD_OUT]
    kept = [episode for i, episode in enumerate(cut) if i % HELD_OUT]
    normalizer = inputs.fit(
        names, np.concatenate([e[0] for e in kept]), np.concatenate([e[1] for e in kept])
    )
    spec = PolicySpec(
        policy=plugin.__module__.rpartition('.')[2],
        name=spec_name,
        version=1,
        space=spaces.ee_delta_space(),
        horizon=HORIZON,
        dt_s=DT_S,
        input_names=names,
        task_kind=task,
        max_row_age_s=MAX_ROW_AGE_S,
    )
    torch.set_num_threads(1)  # in networks this small a second thread costs more than it brings
    torch.manual_seed(seed)
    policy = plugin(settings, spec, normalizer)
    data = training.dataset(kept, HORIZON)
    loss = training.train(policy, data, seed, state_file=state_file, progress=progress)
    metrics = {
        'loss': loss,
        'held_out_loss': training.evaluate(policy, training.dataset(held_out, HORIZON), seed),
        'demonstrations': len(good),
        'chunks': len(data),
    }
    return policy, metrics


def provenance(episodes: Sequence[Episode], seed: int, command: str) -> dict[str, Any]:
    """Return what a manifest says about how a policy was made."""
    data = training.dataset([(e.inputs, e.rows, e.disturbed) for e in episodes], HORIZON)
    return {
        'command': command,
        'seed': seed,
        'scenes': [episodes[0].seed, episodes[-1].seed],
        'episodes': len(episodes),
        'demonstrations_sha256': data.sha256,
        'torch': str(torch.__version__),
    }
