"""The one family of errors, and the helpers that word them alike."""

from collections.abc import Iterable
import difflib
import struct


class ChunkpilotError(Exception):
    """Root of every error that chunkpilot raises on purpose."""


class ConfigError(ChunkpilotError):
    """A parameter, file or combination of them is not allowed."""


class UnknownNameError(ConfigError):
    """A name is not among the known ones."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        self.name, self.nearest = name, nearest(name, names)
        said = hint(self.nearest)
        super().__init__(f'unknown {what} {name!r}.{said} Known: {", ".join(names) or "none"}')


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like another one, None if none is."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def hint(name: str | None) -> str:
    """Return the question whether a name was meant, to append to a sentence; '' for None."""
    return f' Did you mean {name!r}?' if name else ''


class InvalidDataError(ChunkpilotError):
    """A message, array or file does not have the promised shape or values."""


class CapabilityError(ConfigError):
    """A strategy needs what the policy does not offer."""


class CheckpointError(ChunkpilotError):
    """A checkpoint is missing, damaged or made for something else."""


class BagError(ChunkpilotError):
    """A bag can't be written or read."""


def damage(error: Exception) -> str:
    """Say what is wrong with foreign data that could not be read, without words of Python."""
    if isinstance(error, KeyError):
        return f'lacks {error}'
    if isinstance(error, struct.error | IndexError | EOFError):
        return 'it ends too early'
    if isinstance(error, UnicodeError):
        return 'a text is not UTF-8'
    if isinstance(error, OverflowError):
        return 'a number is too large'
    if isinstance(error, TypeError | AttributeError | StopIteration):
        return 'it is not built as it should be'
    return str(error) or type(error).__name__
