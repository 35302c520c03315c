"""What metadata.yaml of a rosbag2 folder says, version 9, and the qualities of service in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
import os
import re
from typing import Any

from chunkpilot_core.types import NS_PER_S
import yaml

VERSION = 9
NAME = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9._-]*')
NAME_RULE = 'letters, digits, ".", "_" and "-" are allowed, and no "." in front'
FILE = 'metadata.yaml'
REPEATED = 'latched_repeated_at_ns'
"""Custom data: times, with spaces between, at which latched messages are in the bag once more."""
ERROR = 'error'
"""Custom data: why recording ended early."""
EMPTY_START_NS = 2**63 - 1
"""Start of what has no message, as rosbag2 writes it."""
FOREVER_NS = 9223372036 * NS_PER_S + 854775807
"""Infinite duration of ROS."""


@dataclass(frozen=True, slots=True)
class TopicQos:
    """Quality of service that a publisher of a topic offers."""

    reliable: bool = True
    latched: bool = False
    depth: int = 10
    keep_all: bool = False
    deadline_ns: int = FOREVER_NS
    lifespan_ns: int = FOREVER_NS
    manual_liveliness: bool = False
    lease_ns: int = FOREVER_NS

    def to_dict(self) -> dict[str, Any]:
        """Return it with the names and words of rosbag2."""
        return {
            'history': 'keep_all' if self.keep_all else 'keep_last',
            # Fast DDS says 0 for remote publishers, which no player accepts
            'depth': max(self.depth, 1),
            'reliability': 'reliable' if self.reliable else 'best_effort',
            'durability': 'transient_local' if self.latched else 'volatile',
            'deadline': _duration(self.deadline_ns),
            'lifespan': _duration(self.lifespan_ns),
            'liveliness': 'manual_by_topic' if self.manual_liveliness else 'automatic',
            'liveliness_lease_duration': _duration(self.lease_ns),
            'avoid_ros_namespace_conventions': False,
        }


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic of a bag and how many messages it has."""

    name: str
    type_name: str
    type_hash: str
    qos: tuple[TopicQos, ...]
    count: int


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a bag."""

    name: str
    start_ns: int
    end_ns: int
    count: int

    def to_dict(self) -> dict[str, Any]:
        """Return it with the names of rosbag2."""
        return {'path': self.name, **_times([self]), 'message_count': self.count}


def describe(
    topics: Sequence[TopicInfo], files: Sequence[FileInfo], custom: Mapping[str, str]
) -> dict[str, Any]:
    """Return what stands under ``rosbag2_bagfile_information``."""
    return {
        'version': VERSION,
        'storage_identifier': 'mcap',
        **_times(files),
        'message_count': sum(file.count for file in files),
        'topics_with_message_count': [
            {
                'topic_metadata': {
                    'name': topic.name,
                    'type': topic.type_name,
                    'serialization_format': 'cdr',
                    'offered_qos_profiles': [qos.to_dict() for qos in topic.qos],
                    'type_description_hash': topic.type_hash,
                },
                'message_count': topic.count,
            }
            for topic in topics
        ],
        'compression_format': '',
        'compression_mode': '',
        'relative_file_paths': [file.name for file in files],
        'files': [file.to_dict() for file in files],
        'custom_data': dict(custom) or None,
        'ros_distro': os.environ.get('ROS_DISTRO', ''),
    }


def dump(data: Any) -> str:
    """Return YAML."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


@lru_cache(maxsize=256)
def profiles_text(qos: tuple[TopicQos, ...]) -> str:
    """Return what a file says of a topic's quality of service: few are different."""
    return dump([profile.to_dict() for profile in qos])


class _Dumper(getattr(yaml, 'CSafeDumper', yaml.SafeDumper)):  # type: ignore[misc]
    """Without anchors: rosbag2 gets every topic's profiles in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _times(files: Sequence[FileInfo]) -> dict[str, Any]:
    filled = [file for file in files if file.count]
    start = min((file.start_ns for file in filled), default=EMPTY_START_NS)
    end = max((file.end_ns for file in filled), default=start)
    return {
        'duration': {'nanoseconds': end - start},
        'starting_time': {'nanoseconds_since_epoch': start},
    }


def _duration(ns: int) -> dict[str, int]:
    sec, nsec = divmod(ns, NS_PER_S) if ns < FOREVER_NS else (9223372036, 854775807)
    return {'sec': sec, 'nsec': nsec}
