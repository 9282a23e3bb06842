"""Names the rank that the others wait for, from the stacks of a group that hangs. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Dict, List, NamedTuple

# As faulthandler writes it: `  File "/app/train.py", line 42 in load`, the innermost frame first.
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:,)? in (?P<function>\S+)', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
# A rank in one of these waits for other ranks or for its device.
_WAITING = re.compile(r"/torch/(?:distributed|autograd|cuda|_tensor\.py|optim)")
MAX_PLACE = 300


class Place(NamedTuple):
    """Where a rank stands."""

    line: str
    """`train.py:42 in load`: the innermost frame of the script; "" if unknown."""
    waits: bool
    """The rank is in a collective, or waits for its device."""


def place(stack: str) -> Place:
    """Returns where the main thread of a rank stands."""
    frames = list(_FRAME.finditer(_main_thread(stack)))
    if not frames:
        return Place("", False)
    innermost = frames[0]
    text = "%s:%s in %s" % (innermost["file"], innermost["line"], innermost["function"])
    return Place(text[-MAX_PLACE:], bool(_WAITING.search(innermost["file"])))


def shortened(stack: str, room: int) -> str:
    """Returns a stack of at most `room` characters, the main thread first, innermost frames first."""
    if len(stack) <= room:
        return stack
    main = _main_thread(stack)
    return (main + stack.replace(main, ""))[:room]


def suspects(ranks: List[int], places: Dict[int, Place]) -> List[int]:
    """Returns the ranks that the others wait for, the most suspect first; `ranks` if no stack helps.

    A rank outside of every collective is waited for, unless all are. Else the ranks that stand where
    no other one does. A rank that gave no stack is suspect if all others wait.
    """
    known = {rank: places[rank] for rank in ranks if rank in places and places[rank].line}
    busy = sorted(rank for rank, where in known.items() if not where.waits)
    if busy and len(busy) < len(ranks):
        return busy
    missing = sorted(rank for rank in ranks if rank not in known)
    if known and missing and not busy:
        return missing
    lines = Counter(where.line for where in known.values())
    odd = sorted(rank for rank, where in known.items() if lines[where.line] == 1)
    return odd if odd and len(odd) < len(known) else sorted(ranks)


def _main_thread(stack: str) -> str:
    """Returns the frames of the thread that Python's signal handlers run in.

    faulthandler names it the current thread if the signal reached it, and writes it last otherwise.
    """
    starts = [found.start() for found in _THREAD.finditer(stack)]
    current = [start for start in starts if stack.startswith("Current", start)]
    start = (current or starts or [0])[-1]
    return stack[start : min((other for other in starts if other > start), default=len(stack))]
