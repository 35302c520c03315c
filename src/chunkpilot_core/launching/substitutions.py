"""
``$(name argument ...)`` in launch files: the ones that these files need, nested and quoted as in
ROS 2's grammar.

Which exist and what they mean: https://docs.ros.org/en/jazzy/ and the README of ros2/launch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import os
from pathlib import Path
import shlex

from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.launching import packages


@dataclass(frozen=True, slots=True)
class Scope:
    """What substitutions can see."""

    variables: Mapping[str, str]
    environment: Mapping[str, str]
    folder: Path  # of the file being read


def evaluate(text: str, scope: Scope) -> str:
    """
    Replace every ``$(...)`` in a text.

    :raises ConfigError: unknown substitution, variable, package or environment variable;
        unbalanced parentheses
    """
    words, _ = _template(text, 0, scope, inside=False)
    return words[0] if words else ''


def truth(text: str) -> bool:
    """
    Read a condition as ROS 2 does: true, 1, false, 0 in any case.

    :raises ConfigError: anything else
    """
    word = text.strip().lower()
    if word in ('true', '1'):
        return True
    if word in ('false', '0'):
        return False
    raise ConfigError(f'condition {text!r} is neither true, 1, false nor 0')


def split(text: str) -> list[str]:
    """
    Split a command line at blanks, as a shell does, but never within ``$(...)``.

    :raises ConfigError: a quotation mark or parenthesis is not closed
    """
    # Substitutions are set aside under names that hold no blank and no quotation mark.
    aside: dict[str, str] = {}
    rest, start = '', 0
    while (found := text.find('$(', start)) >= 0:
        end, depth = found + 2, 1
        while depth and end < len(text):
            depth += {'(': 1, ')': -1}.get(text[end], 0)
            end += 1
        key = f'\0{len(aside)}\0'
        aside[key] = text[found:end]
        rest += text[start:found] + key
        start = end
    try:
        words = shlex.split(rest + text[start:])
    except ValueError as error:
        raise ConfigError(f'{text!r}: {error}') from error
    for key, value in aside.items():
        words = [word.replace(key, value) for word in words]
    return words


def _template(text: str, at: int, scope: Scope, inside: bool) -> tuple[list[str], int]:
    """
    Read until the end, or until ``)`` inside a substitution; there, blanks outside quotes separate
    words.
    """
    words: list[str] = []
    word: str | None = None
    quote = ''
    while at < len(text):
        char = text[at]
        if char == '\\' and at + 1 < len(text) and text[at + 1] in '\\$"\'()':
            word, at = (word or '') + text[at + 1], at + 2
        elif text.startswith('$(', at):
            value, at = _substitution(text, at, scope)
            word = (word or '') + value
        elif inside and quote == '' and char == ')':
            break
        elif inside and char in '\'"' and quote in ('', char):
            quote, word, at = ('' if quote else char), word or '', at + 1
        elif inside and quote == '' and char.isspace():
            if word is not None:
                words.append(word)
            word, at = None, at + 1
        else:
            word, at = (word or '') + char, at + 1
    if word is not None:
        words.append(word)
    return words, at


def _substitution(text: str, start: int, scope: Scope) -> tuple[str, int]:
    words, end = _template(text, start + 2, scope, inside=True)
    if end >= len(text):
        raise ConfigError(f'")" is missing after {text[start:]!r}')
    if not words:
        raise ConfigError(f'empty substitution in {text!r}')
    name, *arguments = words
    if name not in SUBSTITUTIONS:
        raise UnknownNameError(
            'substitution', f'$({name})', (f'$({known})' for known in SUBSTITUTIONS)
        )
    try:
        return SUBSTITUTIONS[name](scope, *arguments), end + 1
    except TypeError:
        raise ConfigError(f'$({name}): wrong number of arguments: {arguments}') from None


def _variable(scope: Scope, name: str, *default: str) -> str:
    if name in scope.variables:
        return scope.variables[name]
    if default:
        return default[0]
    raise UnknownNameError('launch variable', name, scope.variables)


def _environment(scope: Scope, name: str, *default: str) -> str:
    value = scope.environment.get(name, os.environ.get(name))
    if value is not None:
        return value
    if default:
        return default[0]
    raise ConfigError(f'environment variable {name!r} is not set and $(env {name}) has no default')


def _share(_scope: Scope, package: str) -> str:
    return str(packages.share(package))


def _folder(scope: Scope) -> str:
    return str(scope.folder)


def _equals(_scope: Scope, left: str, right: str) -> str:
    try:
        return _word(float(left) == float(right))
    except ValueError:
        return _word(left == right)


def _differs(scope: Scope, left: str, right: str) -> str:
    return _word(not truth(_equals(scope, left, right)))


def _not(_scope: Scope, value: str) -> str:
    return _word(not truth(value))


def _and(_scope: Scope, left: str, right: str) -> str:
    return _word(truth(left) and truth(right))


def _or(_scope: Scope, left: str, right: str) -> str:
    return _word(truth(left) or truth(right))


def _word(value: bool) -> str:
    return 'true' if value else 'false'


SUBSTITUTIONS: Mapping[str, Callable[..., str]] = {
    'var': _variable,
    'env': _environment,
    'find-pkg-share': _share,
    'dirname': _folder,
    'equals': _equals,
    'not-equals': _differs,
    'not': _not,
    'and': _and,
    'or': _or,
}
