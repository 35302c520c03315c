"""
Dataclasses become ROS parameters with descriptors and ranges, and misspelt ones stop the node.
"""

from array import array
from typing import Any, TypeVar

from chunkpilot_core import config
from chunkpilot_core.errors import UnknownNameError
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node

C = TypeVar('C')

_INT64 = 2**63 - 1


def declare(node: Node, cls: type[C], prefix: str = '', read_only: bool = True) -> C:
    """
    Declare one parameter per field of a configuration class and return the configuration in force.

    Parameters are read-only but for a few: what a robot runs with does not change under it. Ranges
    are checked by the dataclass, whose errors name the value and what is allowed; the descriptors
    are for tools.

    :param prefix: of parameter names, e.g. ``'upcycling.'``
    :param read_only: otherwise the node has a callback that judges every change
    :raises ConfigError: a value of the wrong type or out of range
    """
    overrides = node._parameter_overrides
    given = {
        info.name: _plain(overrides[prefix + info.name].value)
        for info in config.options(cls)
        if prefix + info.name in overrides
    }
    built = config.build(cls, given, prefix)  # before ROS, whose own errors come as tracebacks
    for info in config.options(cls):
        # ROS can't tell the type of an empty list: such a parameter is unset until given.
        default = (list(info.default) or None) if info.sequence else info.default
        if not node.has_parameter(prefix + info.name):
            descriptor = _descriptor(info)
            descriptor.read_only = read_only
            node.declare_parameter(prefix + info.name, default, descriptor)
    return built


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, array) else value


def finish(node: Node) -> None:
    """
    Refuse parameters that were given but that nobody declared.

    ROS drops them silently, so a misspelt limit would simply not be in force.

    :raises UnknownNameError: with the nearest known name
    """
    declared = node._parameters  # rclpy has no public list that tells given from declared
    for name in node._parameter_overrides:
        if name not in declared and not name.startswith('qos_overrides.'):
            raise UnknownNameError(f'parameter of {node.get_name()}', name, declared)


def _descriptor(info: config.OptionInfo) -> ParameterDescriptor:
    unit = f' [{info.unit}]' if info.unit else ''
    descriptor = ParameterDescriptor(
        description=info.doc + unit,
        additional_constraints=', '.join(info.choices),
        read_only=True,
        dynamic_typing=True,  # `5` given for a double is an int to ROS; the dataclass casts it
    )
    if info.sequence or (info.min is None and info.max is None):
        return descriptor
    if info.element is int:
        low = -_INT64 if info.min is None else int(info.min)
        high = _INT64 if info.max is None else int(info.max)
        descriptor.integer_range = [IntegerRange(from_value=low, to_value=high, step=1)]
    elif info.element is float:
        low_f = float('-inf') if info.min is None else float(info.min)
        high_f = float('inf') if info.max is None else float(info.max)
        descriptor.floating_point_range = [
            FloatingPointRange(from_value=low_f, to_value=high_f, step=0.0)
        ]
    return descriptor
