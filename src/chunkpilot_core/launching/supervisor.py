"""
Starts processes, passes on what they print, brings them back, and ends them in order.

Each process leads a group of its own. Its group gets what the leader left behind (a worker of a
killed node) as SIGKILL; the leader gets SIGINT, then SIGTERM, then SIGKILL. A guardian process
does the same when this one is killed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
import ctypes
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.launching import guardian
from chunkpilot_core.launching.interpreter import Process

Sink = Callable[[str, str], None]

# A node that dies this fast has a wrong parameter, not bad luck: respawning it for ever would hide
# the message.
QUICK_DEATH_S = 10.0
QUICK_DEATHS = 3
_PR_SET_PDEATHSIG = 1


class Supervisor:
    """
    Runs a list of processes until they have ended, one of the required ones ends, or somebody asks
    to stop.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        sink: Sink,
        environment: Mapping[str, str] | None = None,
        grace_s: float = 5.0,
    ) -> None:
        """
        Take what to run.

        :param processes: in starting order; they are ended in the reverse one
        :param sink: called with the process's name (``''``: the supervisor speaks) and each line
        :param environment: for every process, beneath its own entries; None = as this process
        :param grace_s: [s] between SIGINT, SIGTERM and SIGKILL
        """
        self.processes = processes
        self.sink = sink
        self.environment = dict(os.environ if environment is None else environment)
        self.grace_s = grace_s
        self.restarts: dict[str, int] = {process.name: 0 for process in processes}
        self.exit_codes: dict[str, int] = {}
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.interrupted = False
        self._last_words: dict[str, str] = {}
        self._unwritten: OSError | None = None
        self._code = 0
        self._libc = ctypes.CDLL(None, use_errno=True)

    def run(self) -> int:
        """
        Run until the end.

        :returns: 0 after a clean end or a request to stop, 1 when a required process died, one
            that is brought back died again and again, or one that nobody brings back ended with an
            error
        """
        return asyncio.run(self._main())

    def stop(self, reason: str, code: int = 0) -> None:
        """End everything; asked again, with more force. Only from within the event loop."""
        if self._stopping.is_set():
            self._hurry.set()
            return
        if reason:
            self._say('', reason)
        self._code = max(self._code, code)
        self._stopping.set()

    def _interrupt(self, name: str) -> None:
        self.interrupted = True
        self.stop(f'{name}: stopping')

    async def _main(self) -> int:
        self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupt, signal.Signals(number).name)
        # -I -S: nothing of ours is imported, so that it is there before the first process.
        self._guardian = subprocess.Popen(
            [sys.executable, '-I', '-S', guardian.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        try:
            with tempfile.TemporaryDirectory(prefix='chunkpilot-') as folder:
                tasks = [
                    loop.create_task(self._supervise(process, Path(folder), index))
                    for index, process in enumerate(self.processes)
                ]
                ending = loop.create_task(self._end_in_order())
                done = await asyncio.gather(*tasks, return_exceptions=True)
                self._stopping.set()
                await ending
        finally:
            self._tell_guardian('quit')
            self._guardian.communicate()
        for result in (*done, self._unwritten):
            if isinstance(result, BaseException):
                raise result
        return self._code

    async def _supervise(self, process: Process, folder: Path, index: int) -> None:
        try:
            await self._keep_alive(process, folder, index)
        except BaseException:  # a defect here must not leave the others running for ever
            self.stop('', code=1)
            raise

    async def _keep_alive(self, process: Process, folder: Path, index: int) -> None:
        command, quick_deaths = materialise(process, folder, index), 0
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started = loop.time()
            code = await self._run_once(process, command)
            self.exit_codes[process.name] = code
            if self._stopping.is_set():
                return
            words = f': {self._last_words.get(process.name, "said nothing")}' if code > 0 else ''
            self._say('', f'{process.name} {describe(code)}{words}')
            if process.required:
                self.stop(f'{process.name} is required: stopping', code=1 if code else 0)
                return
            if not process.respawn:
                self._code = max(self._code, 1 if code else 0)
                return
            quick_deaths = quick_deaths + 1 if loop.time() - started < QUICK_DEATH_S else 0
            if quick_deaths >= QUICK_DEATHS:
                self.stop(f'{process.name} died {quick_deaths} times at once: stopping', code=1)
                return
            await self._pause(process.respawn_delay_s)
            if not self._stopping.is_set():
                self.restarts[process.name] += 1
                self._say('', f'{process.name} is started again ({self.restarts[process.name]})')

    async def _run_once(self, process: Process, command: Sequence[str]) -> int:
        # A pipe of our own: asyncio's would delay the news of the end until every worker has
        # closed it.
        reading, writing = os.pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                env={**self.environment, 'PYTHONUNBUFFERED': '1', **process.environment},
                cwd=process.folder,
                start_new_session=True,
                preexec_fn=self._die_with_parent,
            )
        except OSError as error:
            os.close(reading)
            self.stop('', code=1)
            raise ConfigError(f'{process.where}: {process.name}: {error}') from error
        finally:
            os.close(writing)
        self._running[process.name] = child
        self._tell_guardian(f'add {child.pid}')
        reader = asyncio.create_task(self._pass_on(process.name, reading))
        code = await child.wait()
        # What is left of the group (the worker of a node that was killed) would otherwise go on
        # working.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        await reader
        self._tell_guardian(f'del {child.pid}')
        del self._running[process.name]
        return code

    async def _pass_on(self, name: str, reading: int) -> None:
        stream = asyncio.StreamReader(limit=2**20)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, 'rb')
        )
        with closing(transport):
            while not stream.at_eof():
                try:
                    line = await stream.readline()
                except ValueError:  # longer than the limit; the rest comes with the next line
                    continue
                text = line.decode(errors='replace').rstrip('\r\n')
                if text.strip():
                    self._last_words[name] = text
                if line:
                    self._say(name, text)

    def _say(self, name: str, line: str) -> None:
        try:
            self.sink(name, line)
        except BrokenPipeError:  # nobody reads any more, as in `chunkpilot up ... | head`
            self.sink = _drop
            self.stop('')
        except OSError as error:  # a full disk: who runs on unseen can't be trusted
            self.sink = _drop
            self._unwritten = error
            self.stop('', code=1)

    async def _end_in_order(self) -> None:
        await self._stopping.wait()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._signal(number)
            if await self._all_ended(self.grace_s):
                return
        self._say('', f'killing {", ".join(self._running)}')
        self._signal(signal.SIGKILL)
        await self._all_ended(self.grace_s)

    def _signal(self, number: signal.Signals) -> None:
        for name, child in reversed(self._running.items()):
            if number is signal.SIGTERM:
                self._say('', f'{name} did not end after SIGINT, sending SIGTERM')
            with suppress(ProcessLookupError):
                if number is signal.SIGKILL:
                    os.killpg(child.pid, number)
                else:
                    child.send_signal(number)

    async def _all_ended(self, timeout_s: float) -> bool:
        """Wait until no process is left; less when the user asks again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._running and loop.time() < deadline and not self._hurry.is_set():
            await asyncio.sleep(0.02)
        self._hurry.clear()
        return not self._running

    async def _pause(self, duration_s: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), duration_s)

    def _tell_guardian(self, text: str) -> None:
        assert self._guardian.stdin is not None
        # somebody killed it; the processes still die with this one
        with suppress(BrokenPipeError):
            self._guardian.stdin.write(text + '\n')
            self._guardian.stdin.flush()

    def _die_with_parent(self) -> None:
        """
        Run in the child before exec: SIGINT when the launcher dies (the guardian does the rest).
        """
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


def materialise(process: Process, folder: Path, index: int) -> list[str]:
    """Return a process's command line, writing its inline parameters to files in ``folder``."""
    command = list(process.command)
    for number, entry in enumerate(process.parameters):
        if isinstance(entry, str):
            file = folder / f'{index:02d}_{number}_{process.name}.yaml'
            file.write_text(entry, encoding='utf-8')
            entry = file
        command += ['--params-file', str(entry)]
    return command


def describe(code: int) -> str:
    """Say how a process ended."""
    if code == 0:
        return 'has ended'
    if code < 0:
        return f'was killed by {signal.Signals(-code).name}'
    return f'died with exit code {code}'


def _drop(_name: str, _line: str) -> None:
    pass
