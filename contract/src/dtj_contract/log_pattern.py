"""Regular expressions of restart rules, searched in linear time.

Python's `re` backtracks: a pattern such as `(a+)+$` would block the agent for ever on the wrong
text. This matcher follows all alternatives at once, as RE2 does, and has RE2's limits: no
backreference and no look-around. Pure.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Any, Callable, Dict, List, Set, Tuple

try:
    from re import _parser  # type: ignore[attr-defined]  # Python 3.11 and later
except ImportError:
    import sre_parse as _parser

MAX_PATTERN_CHARS = 256
MAX_STATES = 1000
MAX_STEPS = 200_000
"""Of one search: about a tenth of a second. A search that takes more reports no match."""
# Python and RE2 read these differently, or only one of the two accepts them.
AMBIGUOUS = r"\\[pPzZCQEuUNG1-9]|\[\[:|\(\?[#P]|\(\?[a-zA-Z-]*[-LauxU]"

_Test = Callable[[str], bool]
_CHAR, _SPLIT, _AT, _MATCH = range(4)
_CATEGORIES = {
    "CATEGORY_DIGIT": r"[0-9]", "CATEGORY_NOT_DIGIT": r"[^0-9]", "CATEGORY_SPACE": r"[\t\n\f\r\v ]",
    "CATEGORY_NOT_SPACE": r"[^\t\n\f\r\v ]", "CATEGORY_WORD": r"[0-9A-Za-z_]", "CATEGORY_NOT_WORD": r"[^0-9A-Za-z_]",
}  # fmt: skip


class LogPattern:
    """A pattern that is searched anywhere in a text, in which ^ and $ match at each line.

    Raises ValueError if the pattern can't be used.
    """

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern) > MAX_PATTERN_CHARS:
            raise ValueError("a pattern has 1 to %d characters" % MAX_PATTERN_CHARS)
        found = re.search(AMBIGUOUS, pattern)
        if found:
            raise ValueError("%s is not supported" % found.group())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # Sets that a later Python may read otherwise, such as [[]; RE2 reads them as Python does now.
                warnings.simplefilter("ignore", FutureWarning)
                tree = _parser.parse(pattern)
        except (re.error, OverflowError, RecursionError, Warning) as error:
            raise ValueError(str(error)) from error
        self._program: List[Tuple[int, Any]] = []
        self._tests: Dict[Tuple[str, int, int], _Test] = {}
        self._flags = tree.state.flags
        self._add(tree, self._flags)
        self._emit(_MATCH, None)

    def is_in(self, text: str) -> bool:
        """Returns whether the pattern matches somewhere in `text`."""
        current: Set[int] = set()
        steps = 0
        for place in range(len(text) + 1):
            before = text[place - 1] if place else ""
            after = text[place] if place < len(text) else ""
            active = self._closure(current | {0}, before, after)
            steps += len(active)
            if len(self._program) - 1 in active:
                return True
            if steps > MAX_STEPS:
                return False
            waiting = [state for state in active if self._program[state][0] == _CHAR] if after else []
            current = {state + 1 for state in waiting if self._program[state][1](after)}
        return False

    def _closure(self, states: Set[int], before: str, after: str) -> Set[int]:
        """Returns `states` and all that can be reached from them without a character."""
        pending, seen = list(states), set(states)
        while pending:
            state = pending.pop()
            kind, detail = self._program[state]
            if kind == _SPLIT:
                following = detail
            elif kind == _AT and detail(before, after):
                following = (state + 1,)
            else:
                continue
            for target in following:
                if target not in seen:
                    seen.add(target)
                    pending.append(target)
        return seen

    # --- compilation ----------------------------------------------------------------------------------------------

    def _emit(self, kind: int, detail: Any) -> int:
        if len(self._program) >= MAX_STATES:
            raise ValueError("the pattern is too large: its repetitions make more than %d states" % MAX_STATES)
        self._program.append((kind, detail))
        return len(self._program) - 1

    def _add(self, tree: Any, flags: int) -> None:
        for operation, argument in tree:
            name = str(operation)
            if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
                key = name, id(argument), flags
                if key not in self._tests:
                    # A long set in a repetition would otherwise be tested at each state and character.
                    self._tests[key] = lru_cache(4096)(_test(name, argument, flags))
                self._emit(_CHAR, self._tests[key])
            elif name == "BRANCH":
                self._add_branches(argument[1], flags)
            elif name == "SUBPATTERN":
                _, added, removed, inner = argument
                self._add(inner, (flags | added) & ~removed)
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):
                self._add_repeat(argument, flags)
            elif name == "AT":
                self._emit(_AT, _position(str(argument)))
            else:
                raise ValueError("%s is not supported" % name.lower().replace("_", " "))

    def _add_branches(self, branches: Any, flags: int) -> None:
        ends = []
        for branch in branches[:-1]:
            split = self._emit(_SPLIT, ())
            self._add(branch, flags)
            ends.append(self._emit(_SPLIT, ()))
            self._program[split] = (_SPLIT, (split + 1, len(self._program)))
        self._add(branches[-1], flags)
        for end in ends:
            self._program[end] = (_SPLIT, (len(self._program),))

    def _add_repeat(self, argument: Any, flags: int) -> None:
        least, most, inner = argument
        for _ in range(least):
            size = len(self._program)
            self._add(inner, flags)
            if len(self._program) == size:
                break  # it matches the empty text alone
        if str(most) == "MAXREPEAT":
            split = self._emit(_SPLIT, ())
            self._add(inner, flags)
            self._emit(_SPLIT, (split,))
            self._program[split] = (_SPLIT, (split + 1, len(self._program)))
            return
        splits = []
        for _ in range(int(most) - least):
            splits.append(self._emit(_SPLIT, ()))
            self._add(inner, flags)
        for split in splits:
            self._program[split] = (_SPLIT, (split + 1, len(self._program)))


def _test(name: str, argument: Any, flags: int) -> _Test:
    """Returns the test of one character."""
    if name == "ANY":
        return (lambda char: True) if flags & re.DOTALL else (lambda char: char != "\n")
    if name == "IN":
        negated = bool(argument) and str(argument[0][0]) == "NEGATE"
        tests = [_item(str(kind), value) for kind, value in argument[negated:]]
    else:
        negated, tests = name == "NOT_LITERAL", [_item("LITERAL", argument)]
    if flags & re.IGNORECASE:
        return lambda char: any(test(char.lower()) or test(char.upper()) for test in tests) != negated
    return lambda char: any(test(char) for test in tests) != negated


def _item(kind: str, value: Any) -> _Test:
    if kind == "LITERAL":
        return lambda char: char == chr(value)
    if kind == "RANGE":
        return lambda char: value[0] <= ord(char) <= value[1] if len(char) == 1 else False
    category = re.compile(_CATEGORIES[str(value)])
    return lambda char: category.match(char) is not None


def _position(name: str) -> Callable[[str, str], bool]:
    """Returns the test of a position by the characters before and after it; "" outside the text.

    A log is lines: ^ and $ match at each of them.
    """
    if name == "AT_BEGINNING":
        return lambda before, after: before in ("", "\n")
    if name == "AT_BEGINNING_STRING":
        return lambda before, after: not before
    if name == "AT_END":
        return lambda before, after: after in ("", "\n")
    if name in ("AT_BOUNDARY", "AT_NON_BOUNDARY"):
        wanted = name == "AT_BOUNDARY"
        return lambda before, after: (_is_alphanumeric(before) != _is_alphanumeric(after)) == wanted
    raise ValueError("%s is not supported" % name.lower().replace("_", " "))


def _is_alphanumeric(char: str) -> bool:
    return bool(char) and (char == "_" or (char.isascii() and char.isalnum()))
