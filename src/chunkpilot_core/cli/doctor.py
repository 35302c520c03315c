"""``chunkpilot doctor``: what of the environment is found, and what is wrong with it."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
import importlib.metadata
import json
import os
from pathlib import Path
import platform
import shutil
import subprocess
import sys

from chunkpilot_core.errors import ChunkpilotError

HELP = 'print what is installed and what is missing'

MEGABYTE = 1024**2
GIGABYTE = 1024**3
# name of the module, name of the distribution, what does not work without it, needed
LIBRARIES = (
    ('numpy', 'numpy', 'anything', True),
    ('yaml', 'pyyaml', 'configuration files', True),
    ('torch', 'torch', 'policies and learning', True),
    ('safetensors', 'safetensors', 'checkpoints', True),
    ('pybullet', 'pybullet', 'the simulation', True),
    ('panda_gym', 'panda-gym', 'the simulation', True),
    ('gymnasium', 'gymnasium', 'the simulation', True),
    ('cv2', 'opencv-python-headless', 'perception', True),
    ('rosbags', 'rosbags', 'bags', True),
    ('mcap', 'mcap', 'repair of bags', True),
    ('matplotlib', 'matplotlib', 'plots', False),
    ('imageio', 'imageio', 'films', False),
)
# Runs in a process of its own: the ROS of a wrong Python can end the interpreter.
ROS_PROBE = """
import json
import rclpy
from rclpy.utilities import get_rmw_implementation_identifier
rclpy.init(args=['--ros-args', '--disable-rosout-logs'])
node = rclpy.create_node('chunkpilot_doctor')
node.destroy_node()
print(json.dumps({'file': rclpy.__file__, 'rmw': get_rmw_implementation_identifier()}))
rclpy.shutdown()
"""
INTERFACE_PROBE = """
import json
import chunkpilot, chunkpilot.msg as messages
names = [name for name in dir(messages) if name[0].isupper()]
for name in names:
    getattr(messages, name).__class__.__import_type_support__()
print(json.dumps({'file': chunkpilot.__file__, 'messages': len(names)}))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    text: str
    state: str = 'ok'  # 'ok', 'note' (works, but worth knowing) or 'wrong'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument('--json', action='store_true', help='print the findings as JSON')


def main(args: argparse.Namespace) -> str | None:
    """Print every finding; return an error when something needed is missing."""
    findings = []
    for finding in collect():
        findings.append(finding)
        if not args.json:
            mark = {'ok': 'ok  ', 'note': 'note', 'wrong': 'BAD '}[finding.state]
            print(f'{mark} {finding.name:<12} {finding.text}', flush=True)
    if args.json:
        rows = [{'name': f.name, 'text': f.text, 'state': f.state} for f in findings]
        print(json.dumps(rows, indent=2))
    wrong = [finding.name for finding in findings if finding.state == 'wrong']
    return f'doctor: needs attention: {", ".join(wrong)}' if wrong else None


def collect() -> Iterator[Finding]:
    """Yield the findings; a check that fails itself is a finding, too."""
    for check in CHECKS:
        try:
            yield from check()
        except (OSError, ValueError, ChunkpilotError) as error:
            yield Finding(check.__name__.removeprefix('check_'), f'not checked: {error}', 'wrong')


def check_python() -> Iterator[Finding]:
    """Interpreter and machine."""
    text = f'{platform.python_version()} at {sys.executable} on {platform.machine()}'
    good = (3, 10) <= sys.version_info[:2] <= (3, 12)
    yield Finding(
        'python', text if good else f'{text}; 3.10 to 3.12 is needed', wrong_if(not good)
    )


def check_compiler() -> Iterator[Finding]:
    """Build tools: needed by `make setup` only."""
    path = shutil.which(os.environ.get('CXX', 'c++')) or shutil.which('g++')
    if path is None:
        advice = 'none; `make setup` needs one to build the interfaces (build-essential)'
        yield Finding('compiler', advice, 'note')
        return
    version = subprocess.run([path, '--version'], capture_output=True, text=True, check=False)
    yield Finding('compiler', f'{path}, {version.stdout.splitlines()[0]}')


def check_ros() -> Iterator[Finding]:
    """Where ROS 2 comes from, whether a node starts, and on which middleware."""
    found, text = probe(ROS_PROBE)
    if found is None:
        yield Finding(
            'ros', f'rclpy does not start: {text}; `make setup`, `source env.sh`', 'wrong'
        )
        return
    wheels = Path(str(found['file'])).is_relative_to(sys.prefix)
    distro = 'wheels, jazzy' if wheels else f'installation, {os.environ.get("ROS_DISTRO", "?")}'
    yield Finding('ros', f'{distro}, a node starts ({found["file"]})')
    fast = found['rmw'] == 'rmw_fastrtps_cpp'
    text = f'{found["rmw"]}' + ('' if fast else '; tested with rmw_fastrtps_cpp only')
    yield Finding('middleware', text, 'ok' if fast else 'note')


def check_interfaces() -> Iterator[Finding]:
    """Whether our own messages are built and load with their type support."""
    found, text = probe(INTERFACE_PROBE)
    if found is None:
        yield Finding('interfaces', f'{text}; `make setup` builds them', 'wrong')
    else:
        yield Finding('interfaces', f'{found["messages"]} messages in {found["file"]}')


def check_libraries() -> Iterator[Finding]:
    """Python libraries, each by import: an installed one may still not load."""
    names = [module for module, *_ in LIBRARIES]
    found, text = probe(
        'import importlib, json, os\n'
        'errors = {}\n'
        f'for name in {names!r}:\n'
        '    try:\n'
        '        importlib.import_module(name)\n'
        '    except Exception as error:\n'
        '        errors[name] = f"{type(error).__name__}: {error}"\n'
        'print(json.dumps(errors))\n'
    )
    if found is None:
        yield Finding('libraries', f'importing them ends Python: {text}', 'wrong')
        return
    for module, distribution, purpose, needed in LIBRARIES:
        if module in found:
            state = 'wrong' if needed else 'note'
            yield Finding(module, f'{found[module]}; needed for {purpose}', state)
        else:
            yield Finding(module, version_of(distribution))


def check_domain() -> Iterator[Finding]:
    """Who can be heard: the domain and the discovery range."""
    domain = os.environ.get('ROS_DOMAIN_ID', '0')
    reach = os.environ.get('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET (the default of ROS)')
    if not domain.isdigit() or not 0 <= int(domain) <= 232:
        yield Finding('domain', f'ROS_DOMAIN_ID={domain!r} is no number from 0 to 232', 'wrong')
        return
    local = reach == 'LOCALHOST'
    text = f'{domain}, discovery range {reach}'
    yield Finding(
        'domain', text if local else f'{text}: others may hear', 'ok' if local else 'note'
    )
    if os.environ.get('ROS_LOCALHOST_ONLY', '0') == '1':
        yield Finding('domain', 'ROS_LOCALHOST_ONLY=1 overrides the discovery range', 'note')


def check_space() -> Iterator[Finding]:
    """Shared memory for the middleware, disk for runs and bags."""
    memory = Path('/dev/shm')
    if memory.is_dir():
        free = shutil.disk_usage(memory).free
        left = len(list(memory.glob('fastrtps_*')))
        text = f'{free / MEGABYTE:.0f} MB free, {left} files of Fast DDS'
        low = free < 64 * MEGABYTE
        yield Finding('/dev/shm', f'{text}; messages get lost below 64 MB' if low else text,
                      wrong_if(low))  # fmt: skip
    else:
        yield Finding('/dev/shm', 'not there: the middleware falls back to UDP, slower', 'note')
    free = shutil.disk_usage(Path.cwd()).free
    low = free < GIGABYTE
    yield Finding('disk', f'{free / GIGABYTE:.1f} GB free in {Path.cwd()}', wrong_if(low))


def check_cpu() -> Iterator[Finding]:
    """Cores, foreign load, and whether priorities may be raised."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    busy = load > cores
    text = f'{cores} cores, load {load:.1f}'
    yield Finding('cpu', f'{text}: latencies will be worse than published' if busy else text,
                  'note' if busy or cores < 2 else 'ok')  # fmt: skip
    allowed = can_raise_priority()
    advice = 'not available (CAP_SYS_NICE): the option of the launch files will only warn'
    text = 'nice < 0 and SCHED_RR are available' if allowed else advice
    yield Finding('priorities', text, 'ok' if allowed else 'note')


def can_raise_priority() -> bool:
    """Tell whether this process has CAP_SYS_NICE (capability 23 of the effective set)."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith('CapEff:'):
            return bool(int(line.split()[1], 16) >> 23 & 1)
    return False


def probe(code: str, timeout_s: float = 60.0) -> tuple[dict[str, object] | None, str]:
    """
    Run Python code in a process of its own.

    :returns: what its last line says as JSON, or None with the line that tells why not
    """
    command = [sys.executable, '-c', code]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f'no answer within {timeout_s:.0f} s'
    if result.returncode == 0:
        answer: dict[str, object] = json.loads(result.stdout.strip().splitlines()[-1])
        return answer, ''
    lines = result.stderr.strip().splitlines()
    return None, lines[-1] if lines else f'exit code {result.returncode}'


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return 'loads, version unknown'


def wrong_if(condition: bool) -> str:
    """Return the state of a finding."""
    return 'wrong' if condition else 'ok'


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python,
    check_compiler,
    check_ros,
    check_interfaces,
    check_libraries,
    check_domain,
    check_space,
    check_cpu,
)
