#!/usr/bin/env python3
"""
Set up chunkpilot: a virtual environment with ROS 2 in it, and the built interfaces.

Run by ``make setup``. Needs the standard library only, and parses on any Python 3, so that a wrong
one gets a sentence and not a syntax error. Each step writes its stamp last: an interrupted run
continues where it stopped, and a run with nothing to do ends at once.
"""

import errno
import fcntl
import hashlib
import os
from pathlib import Path
import platform
import re
import shutil
import subprocess
import sys
import time

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / '.venv'
PYTHON = VENV / 'bin' / 'python'
STAMPS = VENV / 'stamps'
LOG = VENV / 'setup.log'
INSTALL = ROOT / 'install' / 'chunkpilot'
# Raise when a step changes what it does to an environment that an older version made.
RECIPE = '1'
GIGABYTE = 1024**3
QUIET = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}
SIGN_OF_LIFE_S = 15
WIDTH = 90
DISK_NEEDED = {'environment': 4 * GIGABYTE, 'build': GIGABYTE // 2}


class SetupError(Exception):
    """One line that says what is wrong and what to do."""


def say(text):
    """Print a line at once, also into a pipe."""
    print('[setup] ' + text, flush=True)


# What is on this machine


def find_ros_installation():
    """Return (distro, prefixes) of a sourced ROS 2 installation, or None; our wheels are none."""
    distro = os.environ.get('ROS_DISTRO')
    prefixes = [Path(p) for p in os.environ.get('AMENT_PREFIX_PATH', '').split(':') if p]
    real = [p for p in prefixes if ROOT not in p.resolve().parents]
    if distro and any((p / 'share' / 'rclpy' / 'package.xml').is_file() for p in real):
        return distro, [str(p) for p in real]
    return None


def version_of(python):
    """Return (major, minor) of an interpreter, None if it does not run."""
    return (inspect(python) or (None,))[0]


def inspect(python):
    """Return ((major, minor), prefix outside of any virtual environment), None if it fails."""
    code = 'import sys; print("%d %d" % sys.version_info[:2]); print(sys.base_prefix)'
    command = [str(python), '-c', code]
    try:
        output = subprocess.check_output(
            command, stderr=subprocess.DEVNULL, universal_newlines=True
        )
        version, prefix = output.splitlines()
        major, minor = version.split()
        return (int(major), int(minor)), Path(prefix)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def choose_python(ros):
    """
    Return the interpreter to build on: 3.11 for the wheels, the installation's own otherwise.
    """
    given = os.environ.get('CHUNKPILOT_PYTHON')
    allowed = [(3, 10), (3, 11), (3, 12)] if ros else [(3, 11)]
    names = ['python3', '/usr/bin/python3'] if ros else ['python3.11', sys.executable, 'python3']
    for name in [given] if given else names:
        found = inspect(name)
        if found and found[0] in allowed:
            # An active environment, ours or another one, stands for the Python it was made from.
            base = found[1] / 'bin' / ('python%d.%d' % found[0])
            path = str(base if base.is_file() else shutil.which(name) or name)
            if not ros or subprocess.call([path, '-c', 'import rclpy'], **QUIET) == 0:
                return path
    wanted = ' or '.join('%d.%d' % v for v in allowed)
    if ros:
        raise SetupError(
            'no Python %s that imports rclpy of the sourced ROS 2 %s; source its setup file again'
            % (wanted, ros[0])
        )
    raise SetupError(
        'Python 3.11 is needed (this is %s%s); install it, set CHUNKPILOT_PYTHON to where it is, '
        'or source a ROS 2 installation (Python 3.10 to 3.12)'
        % (platform.python_version(), ', asked for %s' % given if given else '')
    )


def check_machine(python, ros):
    """Raise SetupError for what pip or CMake would only say after minutes."""
    machine = platform.machine()
    if sys.platform != 'linux' or (not ros and machine not in ('x86_64', 'AMD64')):
        raise SetupError(
            'the ROS 2 wheels exist for Linux on x86-64 only (this is %s on %s); '
            'source a ROS 2 installation instead' % (platform.system(), machine)
        )
    for variable, names in (('CC', ('cc', 'gcc', 'clang')), ('CXX', ('c++', 'g++', 'clang++'))):
        given = os.environ.get(variable, '').split()
        if not any(shutil.which(name) for name in (given[:1] or names)):
            raise SetupError(
                'no C/C++ compiler found (looked for %s); install one, for instance with '
                '`apt install build-essential`' % ', '.join(given[:1] or names)
            )
    code = 'import ensurepip, sysconfig; print(sysconfig.get_path("include"))'
    result = subprocess.run([python, '-c', code], stdout=-1, stderr=-3, universal_newlines=True)
    version = 'python%d.%d' % version_of(python)
    if result.returncode != 0:
        raise SetupError('%s has no venv module; `apt install %s-venv`' % (python, version))
    if not (Path(result.stdout.strip()) / 'Python.h').is_file():
        raise SetupError('%s has no C headers; `apt install %s-dev`' % (python, version))


def check_disk(step):
    """Raise SetupError when the step would fill the disk."""
    free, needed = shutil.disk_usage(str(ROOT)).free, DISK_NEEDED[step]
    if free < needed:
        raise SetupError(
            'not enough disk space in %s: %.1f GB free, %.1f GB needed'
            % (ROOT, free / GIGABYTE, needed / GIGABYTE)
        )


# Stamps and processes


def digest(*parts):
    """Return the hash of texts, and of files by their content."""
    total = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else str(part).encode()
        total.update(content + b'\0')
    return total.hexdigest()


def is_done(step, value):
    """Tell whether the step's stamp holds this value."""
    stamp = STAMPS / step
    return stamp.is_file() and stamp.read_text() == value


def write_stamp(step, value):
    """Record that the step is complete; the rename makes it all or nothing."""
    STAMPS.mkdir(parents=True, exist_ok=True)
    (STAMPS / (step + '.new')).write_text(value)
    (STAMPS / (step + '.new')).replace(STAMPS / step)


def run(command, what, environment=None):
    """
    Run a command with its output in the log, and tell now and then where it is.

    Raise SetupError with one reason if it fails.
    """
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open('a') as log:
        log.write('\n$ %s\n' % ' '.join(map(str, command)))
        log.flush()
        start = log.tell()
        process = subprocess.Popen(
            [str(c) for c in command], cwd=str(ROOT), env=environment, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            code = wait(process, start)
        except BaseException:  # Ctrl-C: what it was at is not to go on alone
            process.kill()
            process.wait()
            raise
    if code != 0:
        text = LOG.read_bytes()[start:].decode(errors='replace')
        raise SetupError('%s failed: %s (all of it: %s)' % (what, reason(text), LOG))


def wait(process, start):
    """Return a process's exit code; meanwhile say what its output, in the log, comes to."""
    began = time.monotonic()
    while True:
        try:
            return process.wait(SIGN_OF_LIFE_S)
        except subprocess.TimeoutExpired:
            say('  %3.0f s: %s' % (time.monotonic() - began, latest(start)))


def latest(start):
    """Return the newest line of the log after a position, shortened."""
    with LOG.open('rb') as log:
        log.seek(max(start, LOG.stat().st_size - 16384))
        lines = log.read().decode(errors='replace').split('\n')
    newest = ([line.strip() for line in lines if line.strip()] or ['no output yet'])[-1]
    newest = newest.split(' (from ')[0]  # pip names the file and line of each requirement
    return newest if len(newest) <= WIDTH else newest[: WIDTH - 3] + '...'


def reason(text):
    """Return the line of a failed command's output that says most."""
    network = (
        'Connection refused',
        'ConnectTimeout',
        'Failed to establish a new connection',
        'Name or service not known',
        'NameResolutionError',
        'Network is unreachable',
        'NewConnectionError',
        'ProxyError',
        'Temporary failure in name resolution',
    )
    if 'No space left on device' in text:
        return 'the disk is full'
    if any(word in text for word in network):
        return 'the package index cannot be reached; is there a network?'
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for mark in (
        'Error processing',
        'CMake Error',
        ' error: ',
        'ERROR: ',
        'Error',
        'ninja: error',
    ):
        for i, line in enumerate(lines):
            if (
                mark in line
                and 'resolver' not in line
                and (mark[0] == 'n' or line[:6] != 'ninja:')
            ):
                # CMake wraps: where in one line, what in the next.
                wrapped = mark in ('Error processing', 'CMake Error')
                return ' '.join(lines[i : i + 3]) if wrapped else line
    return lines[-1] if lines else 'no output'


# The steps


def check_owner():
    """Refuse a .venv that is a link to that of another checkout, which would be changed."""
    made = VENV / 'chunkpilot_env.sh'
    if VENV.is_symlink() and made.is_file() and "VIRTUAL_ENV='%s'" % VENV not in made.read_text():
        raise SetupError(
            '%s is a link to %s, the environment of another checkout; remove the link'
            % (VENV, os.path.realpath(str(VENV)))
        )


def make_environment(python, ros):
    """Create .venv, install the pinned requirements, patch the wheels."""
    files = [ROOT / 'requirements' / name for name in requirement_files(ros)]
    check_owner()
    source = ros[0] if ros else 'wheels'
    value = digest(RECIPE, str(VENV), source, version_of(python), *files)
    if is_done('environment', value) and version_of(PYTHON) == version_of(python):
        say('environment: up to date')
        return value
    check_disk('environment')
    if (STAMPS / 'build').is_file():
        (STAMPS / 'build').unlink()
    start = time.monotonic()
    usable = version_of(PYTHON) == version_of(python) and is_done('source', source)
    if not usable or subprocess.call([str(PYTHON), '-m', 'pip', '--version'], **QUIET):
        say('environment: creating %s with %s' % (VENV, python))
        options = ['--clear'] + (['--system-site-packages'] if ros else [])
        shutil.rmtree(str(VENV), ignore_errors=True)
        subprocess.check_call([python, '-m', 'venv'] + options + [str(VENV)])
        write_stamp('source', source)
    say('environment: installing %s (about 2 minutes)' % ', '.join(f.name for f in files))
    pip = [PYTHON, '-m', 'pip', 'install', '--disable-pip-version-check', '--no-input',
           '--progress-bar', 'off', '--retries', '2']  # fmt: skip
    for file in files:
        # A lock names everything; torch may come as a build that needs more than its CPU one.
        options = ['--no-deps'] if file.name == 'lock.txt' else []
        run(pip + options + ['-r', file], 'pip install -r requirements/%s' % file.name)
    if not ros:
        patch_wheels()
    write_activation(ros)
    write_stamp('environment', value)
    say('environment: ready after %.0f s' % (time.monotonic() - start))
    return value


def requirement_files(ros):
    """Return the requirement files, in order of installation."""
    return ['ros_installation.txt'] if ros else ['lock.txt', 'torch.txt']


def patch_wheels():
    """Replace the include folders of the wheels' build machine by those of this one."""
    code = (
        'import numpy, sysconfig; print(sysconfig.get_path("include")); print(numpy.get_include())'
    )
    text = subprocess.check_output([str(PYTHON), '-c', code], env=wheels_environment())
    python_include, numpy_include = text.decode().splitlines()
    prefix = r'/opt/python/[^/;"]+/'
    numpy_folder = re.compile(prefix + r'lib/python[^/;"]+/site-packages/numpy/[^;"]*include')
    python_folder = re.compile(prefix + r'include/python[0-9.]+')
    count = 0
    for file in VENV.glob('share/*/cmake/export_*__rosidl_generator_pyExport.cmake'):
        old = file.read_text()
        new = python_folder.sub(python_include, numpy_folder.sub(numpy_include, old))
        if new != old:
            file.write_text(new)
            count += 1
    say('environment: patched the include folders of %d ROS packages' % count)


def site_packages():
    """Return the environment's folder of Python packages."""
    return VENV / 'lib' / ('python%d.%d' % version_of(PYTHON)) / 'site-packages'


def library_path():
    """Return the folders of the wheels' shared libraries."""
    return [str(VENV / 'lib')] + sorted(str(p) for p in site_packages().glob('ros_*.libs'))


def wheels_environment():
    """Return the process environment in which tools from the wheels run."""
    environment = dict(os.environ)
    environment.pop('PYTHONPATH', None)
    environment.update(
        _ROS_WHEELS_BOOTSTRAP_COMPLETE='1',
        AMENT_PREFIX_PATH=str(VENV),
        CMAKE_PREFIX_PATH=str(VENV),
        LD_LIBRARY_PATH=':'.join(library_path()),
        PATH='%s:%s' % (VENV / 'bin', os.environ.get('PATH', '')),
        VIRTUAL_ENV=str(VENV),
    )
    return environment


def installation_environment():
    """Return the process environment for a sourced ROS 2 installation."""
    environment = dict(os.environ)
    environment['PATH'] = '%s:%s' % (VENV / 'bin', os.environ.get('PATH', ''))
    environment['VIRTUAL_ENV'] = str(VENV)
    return environment


def write_activation(ros):
    """Write what env.sh sources, and the `chunkpilot` command that needs no sourcing."""
    python = 'python%d.%d' % version_of(PYTHON)
    packages = INSTALL / 'lib' / python / 'site-packages'
    if ros:
        # Debian's Python installs elsewhere when CMake finds it outside of the environment.
        local = INSTALL / 'local' / 'lib' / python / 'dist-packages'
        variables = {
            'AMENT_PREFIX_PATH': [INSTALL],
            'CMAKE_PREFIX_PATH': [INSTALL],
            'LD_LIBRARY_PATH': [INSTALL / 'lib'],
            'PYTHONPATH': [ROOT / 'src', packages, local],
            'PATH': [VENV / 'bin'],
        }
        # The last prefix is the installation itself, those before it are workspaces on top.
        folder = ros[1][-1]
        before = [
            '# shellcheck disable=SC1090',
            'case ":${AMENT_PREFIX_PATH:-}:" in',
            "  *':%s:'*) ;;" % folder,
            # ROS's own setup files use unset variables.
            '  *) case $- in *u*) _chunkpilot_u=u ;; *) _chunkpilot_u= ;; esac',
            '     set +u',
            "     [ ! -r '%s/setup.sh' ] || . '%s/setup.sh'" % (folder, folder),
            '     [ -z "$_chunkpilot_u" ] || set -u',
            '     unset _chunkpilot_u ;;',
            'esac',
        ]
    else:
        variables = {
            'AMENT_PREFIX_PATH': [INSTALL, VENV],
            'CMAKE_PREFIX_PATH': [INSTALL, VENV],
            'LD_LIBRARY_PATH': [INSTALL / 'lib'] + library_path(),
            'PYTHONPATH': [ROOT / 'src', packages],
            'PATH': [VENV / 'bin'],
        }
        before = ['export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1']
    lines = [
        '# Written by tools/setup.py; sourced by env.sh and by bin/chunkpilot. POSIX sh.',
        *before,
        '_chunkpilot_prepend() {',
        '  eval "_chunkpilot_old=\\${$1:-}"',
        '  case ":$_chunkpilot_old:" in',
        '    *":$2:"*) ;;',
        '    *) eval "export $1=\\$2\\${_chunkpilot_old:+:\\$_chunkpilot_old}" ;;',
        '  esac',
        '}',
    ]
    for name, folders in variables.items():
        lines += ["_chunkpilot_prepend %s '%s'" % (name, folder) for folder in reversed(folders)]
    lines += [
        'unset -f _chunkpilot_prepend',
        'unset _chunkpilot_old',
        "export VIRTUAL_ENV='%s'" % VENV,
        'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"',
        'export ROS_AUTOMATIC_DISCOVERY_RANGE="${ROS_AUTOMATIC_DISCOVERY_RANGE:-LOCALHOST}"',
        '',
    ]
    (VENV / 'chunkpilot_env.sh').write_text('\n'.join(lines))
    command = VENV / 'bin' / 'chunkpilot'
    command.write_text(
        '#!/bin/sh\n'
        '# Written by tools/setup.py: runs chunkpilot with or without env.sh sourced.\n'
        ". '%s'\n"
        'exec \'%s\' -m chunkpilot_core.cli "$@"\n' % (VENV / 'chunkpilot_env.sh', PYTHON)
    )
    command.chmod(0o755)


def interface_files():
    """Return the interface definitions."""
    kinds = ('msg', 'srv', 'action')
    return sorted(f for kind in kinds for f in (ROOT / kind).glob('*.' + kind))


def build(environment_stamp, ros):
    """Build and install the package with colcon."""
    names = ['CMakeLists.txt', 'package.xml', 'setup.cfg']
    files = [ROOT / name for name in names] + interface_files()
    # Installed as links: their content needs no build, a new file does.
    linked = sorted(
        str(f.relative_to(ROOT))
        for folder in ('launch', 'config')
        for f in (ROOT / folder).rglob('*')
        if f.is_file()
    )
    value = digest(RECIPE, environment_stamp, *files, *map(str, files), *linked)
    if is_done('build', value) and (INSTALL / 'share' / 'chunkpilot' / 'package.xml').is_file():
        say('build: up to date')
        return
    check_disk('build')
    start = time.monotonic()
    count = len(interface_files())
    say('build: %d interfaces with colcon (about 2 minutes the first time)' % count)
    environment = installation_environment() if ros else wheels_environment()
    # colcon would have it wait for a load below the number of CPUs: on a busy machine, for ever.
    environment['MAKEFLAGS'] = '-j%d' % (os.cpu_count() or 1)
    colcon = shutil.which('colcon', path=environment['PATH']) or 'colcon'
    command = [colcon, 'build', '--symlink-install',
               '--event-handlers', 'console_direct+', 'desktop_notification-', 'status-',
               '--cmake-args', '-GNinja', '-DCMAKE_BUILD_TYPE=Release',
               # Generated code copies arrays: -O3 only costs build time. NDEBUG is needed.
               '-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG', '-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG',
               '-DCHUNKPILOT_PYTHON_INTERFACES_ONLY=ON',
               '-DPython3_EXECUTABLE=%s' % PYTHON]  # fmt: skip
    if not (STAMPS / 'build').is_file():
        # What an interrupted or older build left of CMake's files is not to be trusted.
        command.insert(2, '--cmake-force-configure')
    run(command, 'colcon build', environment)
    write_stamp('build', value)
    say('build: ready after %.0f s' % (time.monotonic() - start))


def lock():
    """Wait until no other setup works in this folder; the lock goes with the process."""
    file = (ROOT / '.setup.lock').open('w')
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say('another setup is at work here, waiting for it')
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def set_up():
    """Run every step that is not done yet."""
    start = time.monotonic()
    ros = find_ros_installation()
    python = choose_python(ros)
    check_machine(python, ros)
    say('ROS 2 from %s' % ('the sourced installation (%s)' % ros[0] if ros else 'wheels (jazzy)'))
    holder = lock()
    try:
        build(make_environment(python, ros), ros)
    finally:
        holder.close()
    seconds = time.monotonic() - start
    say('done after %.1f s; now `source env.sh`, or run .venv/bin/chunkpilot' % seconds)


def main():
    """Return the exit code."""
    try:
        set_up()
    except SetupError as error:
        print('[setup] error: %s' % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\n[setup] interrupted; `make setup` continues from here', file=sys.stderr)
        return 130
    except subprocess.CalledProcessError as error:
        print('[setup] error: %s' % error, file=sys.stderr)
        return 1
    except OSError as error:
        text = 'the disk is full' if error.errno == errno.ENOSPC else str(error)
        print('[setup] error: %s' % text, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
