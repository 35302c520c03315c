"""What is in a bag, as numbers and texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.types import EpisodeOutcome, NS_PER_S


def describe(path: str | Path) -> dict[str, Any]:
    """
    Return what a bag has, ready for JSON.

    :raises BagError: it can't be read
    """
    with BagReader(path) as bag:
        told = bag.told
        duration_s = (bag.end_ns - bag.start_ns) / NS_PER_S
        return {
            'bag': str(path),
            'version': told.version if told else None,
            'storage': told.storage if told else bag.files[0].suffix.lstrip('.'),
            'distro': told.distro if told else '',
            'files': [str(file.name) for file in bag.files],
            'bytes': sum(file.stat().st_size for file in bag.files),
            'start_ns': bag.start_ns,
            'duration_s': duration_s,
            'messages': sum(bag.counts.values()),
            'topics': {
                name: {
                    'type': topic.type_name,
                    'messages': topic.count,
                    'hz': (topic.count - 1) / duration_s
                    if topic.count > 1 and duration_s > 0
                    else None,
                    'reliable': all(qos.reliable for qos in topic.qos),
                    'latched': topic.latched,
                    'depth': max((qos.depth for qos in topic.qos), default=None),
                    'hash': topic.definition.hash,
                    'definition': bool(topic.definition.text),
                }
                for name, topic in bag.details.items()
            },
            'outcome': _outcome(bag.metadata),
            'metadata': dict(bag.metadata),
        }


def _outcome(metadata: Mapping[str, str]) -> str:
    """Return how the episode of a bag ended; empty for a bag that is not of one episode."""
    if 'outcome' in metadata or 'episode_id' not in metadata:
        return metadata.get('outcome', '')
    return EpisodeOutcome.ABORTED.name.lower()  # its recording ended before it did
