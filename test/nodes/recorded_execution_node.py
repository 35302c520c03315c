"""The execution node as it is, and at its end a file of what its core was told and said."""

import os
from pathlib import Path
import pickle

from chunkpilot_core.execution.runtime import replay
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_nodes import spin
from chunkpilot_nodes.execution_node import ExecutionNode


class RecordedExecutionNode(ExecutionNode):
    """Writes its trace to the file that the environment names."""

    def _new_executor(self) -> Executor:
        executor = super()._new_executor()
        self._core, self._calls = executor, replay.record(executor)
        return executor

    def shutdown(self) -> None:
        """Leave the trace."""
        super().shutdown()
        trace = {
            'calls': self._calls,
            'session': self._core._session,
            'config': self._core.config,
            'options': self._options,
        }
        Path(os.environ['TRACE_FILE']).write_bytes(pickle.dumps(trace))


if __name__ == '__main__':
    spin.main(RecordedExecutionNode, executor='events')
