"""A run for people: the table of its numbers, a plot and a film of one episode."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunkpilot_core import camera
from chunkpilot_core.robot import Robot
from chunkpilot_core.runs.trace import EpisodeTrace
from chunkpilot_core.sim.scene import Scene
import numpy as np

FILM_SIZE = (480, 360)
FILM_HZ = 12.5
LAST_FRAME_MS = 1500
COLUMNS = ('x', 'y', 'z', 'gripper')
SILENCE_S = 0.1
BUSY_PCT = 1.0  # of control ticks more than 5 ms late: figures are the machine's then


def table(summary: Mapping[str, Any]) -> str:
    """Return the numbers of a run as text."""
    restarts = summary.get('node_restarts') or {}
    lines = [
        ('task, policy, strategy', '{task}, {policy}, {strategy}'.format(**summary)),
        ('success', f'{summary["successes"]} of {summary["episodes"]}'),
        ('policy calls per episode', _number(summary['policy_calls_per_episode'])),
        ('rows executed, discarded', '{executed_rows}, {discarded_rows}'.format(**summary)),
        ('rows per call / base horizon', _number(summary['calls_saved_ratio'])),
        ('starved ticks', _number(summary['starved_pct'], '%')),
        ('ticks more than 5 ms late', _number(summary['deadline_miss_pct'], '%')),
        ('execution tick to robot p50, p99', _pair(summary['command_latency_ms'], 'p50', 'p99')),
        ('observation age when acted on p50', _pair(summary['observation_age_ms'], 'p50')),
        ('guard ticks beside pass', _altered(summary['guard'])),
        ('nodes started again', ', '.join(f'{key} {n}' for key, n in restarts.items()) or 'none'),
        ('CPU of others', _number(summary['cpu_cores']['foreign'], ' cores')),
    ]
    lines += [('fault', _fault(**entry)) for entry in summary.get('faults') or ()]
    lines += [
        (f'seed {end["seed"]} aborted', end['reason'])
        for end in summary['per_episode']
        if end['outcome'] == 'aborted'
    ]
    if (summary['deadline_miss_pct'] or 0.0) > BUSY_PCT:
        lines.append(
            ('too slow or too busy', 'the guard and success suffer; see chunkpilot doctor')
        )
    width = max(len(name) for name, _ in lines)
    return '\n'.join(f'  {name.ljust(width)}  {value}' for name, value in lines)


def _fault(fault: str, applied: int) -> str:
    """Return whether a fault on purpose took place: one that did not proves nothing."""
    return f'{fault}: {f"applied {applied} times" if applied else "did not take place"}'


def _altered(ticks: Mapping[str, int]) -> str:
    """Return how often the guard did something, of all ticks."""
    told = [f'{name} {count}' for name, count in ticks.items() if count and name != 'pass']
    return f'{", ".join(told)} of {sum(ticks.values())}' if told else 'none'


def _number(value: float | None, unit: str = '') -> str:
    return '-' if value is None else f'{value:.3g}{unit}'


def _pair(values: Mapping[str, float | None], *keys: str) -> str:
    return ', '.join(_number(values[key], ' ms') for key in keys)


def plot(trace: EpisodeTrace, path: Path) -> None:
    """Draw an episode's commands, where chunks begin, and the rows run beyond the base horizon."""
    import matplotlib as mpl

    mpl.use('Agg')
    from matplotlib import pyplot

    times = np.array(trace.times_s)
    targets = np.array(trace.targets)
    figure, axes = pyplot.subplots(targets.shape[1], 1, sharex=True, figsize=(9, 6))
    silent = np.flatnonzero(np.diff(times) > SILENCE_S) + 1  # drawn as gaps, not as motion
    drawn = np.insert(times, silent, np.nan), np.insert(targets, silent, np.nan, axis=0)
    for column, axis in enumerate(axes):
        axis.plot(drawn[0], drawn[1][:, column], color='black', linewidth=1.2)
        axis.set_ylabel(f'{COLUMNS[column]} [m]')
        for start, stop in extended(trace):
            axis.axvspan(start, stop, color='tab:green', alpha=0.25, linewidth=0)
        for at in borders(trace):
            axis.axvline(at, color='tab:blue', linewidth=0.8)
    for at in times[np.array(trace.starved, bool)]:
        axes[0].axvline(at, color='tab:red', linewidth=0.8)
    axes[0].set_title(
        f'{trace.episode_id}, seed {trace.seed}: commands, chunk borders (blue), '
        'rows beyond the base horizon (green)',
        fontsize=9,
    )
    axes[-1].set_xlabel('time since the start of the episode [s]')
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def borders(trace: EpisodeTrace) -> list[float]:
    """Return the times [s] at which another chunk takes over."""
    chunks = np.array(trace.chunks)
    changed = np.flatnonzero(np.diff(chunks, prepend=0) != 0)
    return [trace.times_s[i] for i in changed if chunks[i] != 0]


def extended(trace: EpisodeTrace) -> list[tuple[float, float]]:
    """Return the spans [s] in which rows beyond their chunk's base horizon ran."""
    bases = np.array([trace.bases.get(chunk, 0) for chunk in trace.chunks])
    beyond = (bases > 0) & (np.array(trace.rows) >= bases)
    edges = np.flatnonzero(np.diff(beyond.astype(int), prepend=0, append=0))
    times = [*trace.times_s, trace.times_s[-1]]
    return [(times[a], times[b]) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def film(trace: EpisodeTrace, robot: Robot, path: Path) -> None:
    """Render an episode as an animated GIF; the goal is drawn as a ring."""
    from chunkpilot_core.sim.renderer import Renderer
    from PIL import Image, ImageDraw

    width, height = FILM_SIZE
    view = camera.orbit('film', width, height, (-0.15, 0.0, 0.12), 1.3, 52.0, -24.0, 45.0)
    renderer = Renderer(view, robot)
    frames = []
    try:
        for scene in thinned(trace.scenes, FILM_HZ):
            frame = Image.fromarray(renderer.render(scene).pixels)
            draw = ImageDraw.Draw(frame)
            for u, v in view.project(scene.goal.reshape(-1, 3)):
                draw.ellipse((u - 9, v - 9, u + 9, v + 9), outline=(220, 40, 40), width=2)
            if scene.success:
                draw.text((8, 8), 'solved', fill=(20, 120, 20))
            frames.append(frame.quantize(96, method=Image.Quantize.FASTOCTREE))
    finally:
        renderer.close()
    first, *rest = frames
    pauses = [round(1000 / FILM_HZ)] * len(rest) + [LAST_FRAME_MS]
    first.save(
        path,
        save_all=True,
        append_images=rest,
        duration=pauses,
        loop=0,
        optimize=True,
    )


def thinned(scenes: list[Scene], rate_hz: float) -> list[Scene]:
    """Return scenes at a lower rate, the last one included."""
    kept: list[Scene] = []
    for scene in scenes:
        if not kept or scene.stamp_ns - kept[-1].stamp_ns >= 1e9 / rate_hz:
            kept.append(scene)
    return kept if kept[-1] is scenes[-1] else [*kept, scenes[-1]]
