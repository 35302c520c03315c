"""The one family of errors, and the helpers that word them alike."""

from collections.abc import Iterable
import difflib


class ChunkpilotError(Exception):
    """Root of every error that chunkpilot raises on purpose."""


class ConfigError(ChunkpilotError):
    """A parameter, file or combination of them is not allowed."""


class UnknownNameError(ConfigError):
    """A name is not among the known ones."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f' Did you mean {near[0]!r}?' if near else ''
        super().__init__(f'unknown {what} {name!r}.{hint} Known: {", ".join(names) or "none"}')
        self.name = name
        self.nearest = near[0] if near else None


class InvalidDataError(ChunkpilotError):
    """A message, array or file does not have the promised shape or values."""


class CapabilityError(ConfigError):
    """A strategy needs what the policy does not offer."""


class CheckpointError(ChunkpilotError):
    """A checkpoint is missing, damaged or made for something else."""


class BagError(ChunkpilotError):
    """A bag can't be written or read."""
