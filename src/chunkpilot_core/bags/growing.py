"""A ``.npy`` file that grows by rows: readable by ``np.load(mmap_mode='r')`` at any time."""

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from chunkpilot_core.errors import BagError
import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 256  # of a fixed length, so that the number of rows can be written over


class GrowingArray:
    """Appends rows of one type and shape to a file; what is not committed is not there."""

    def __init__(self, file: Path, dtype: Any, tail: tuple[int, ...], rows: int) -> None:
        """
        Open a file for writing, or create it.

        :param dtype: of a number
        :param tail: shape of one row
        :param rows: how many there are; what a killed process wrote behind them is cut off
        :raises BagError: the file holds fewer
        :raises OSError: it can't be written
        """
        self.dtype, self.tail, self.rows = np.dtype(dtype), tuple(tail), rows
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.tail, dtype=np.int64))
        if rows == 0:
            file.write_bytes(self._header())
        self._stream = file.open('r+b')
        end = HEADER_BYTES + rows * self._row_bytes
        if file.stat().st_size < end:
            self._stream.close()
            raise BagError(f'{file}: shorter than its index says; delete the cache')
        self._stream.truncate(end)
        self._stream.seek(end)

    def append(self, values: NDArray[Any]) -> None:
        """Write rows (N, *tail) behind those that there are."""
        assert values.shape[1:] == self.tail
        if values.size:  # no memory view of nothing
            self._stream.write(np.ascontiguousarray(values, self.dtype).data.cast('B'))
        self.rows += len(values)

    def commit(self) -> None:
        """Make what was appended part of the file, on the disk."""
        self._stream.seek(0)
        self._stream.write(self._header())
        self._stream.seek(0, os.SEEK_END)
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def _header(self) -> bytes:
        shape = (self.rows, *self.tail)
        text = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
        start = b'\x93NUMPY\x01\x00' + (HEADER_BYTES - 10).to_bytes(2, 'little')
        return start + text.encode().ljust(HEADER_BYTES - 11) + b'\n'

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __enter__(self) -> 'GrowingArray':
        """Append inside of a with block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()


def mapped(file: Path, dtype: Any, tail: tuple[int, ...], rows: int) -> NDArray[Any]:
    """
    Map the first rows of a file, read only.

    :raises BagError: missing, damaged, or of another type or shape
    """
    try:
        found = np.load(file, mmap_mode='r', allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TypeError) as error:
        raise BagError(f'{file}: damaged: {error}') from error
    shape, wanted = found.shape, np.dtype(dtype)
    if found.dtype != wanted or shape[1:] != tuple(tail) or len(found) < rows:
        raise BagError(
            f'{file}: {found.dtype} {shape}, the index says {wanted} {(rows, *tail)}; '
            'delete the cache'
        )
    return np.asarray(found[:rows])
