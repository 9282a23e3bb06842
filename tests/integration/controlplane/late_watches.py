"""`dtj-operator` whose watches of pods and StatefulSets show nothing new. Its flags are those of dtj-operator."""

from __future__ import annotations

import sys
from typing import Any

from dtj_operator import app
from dtj_operator.kube.cache.reflector import Reflector
from dtj_operator.kube.resources import POD, STATEFUL_SET

take = Reflector._take


def take_late(reflector: Reflector, kind: str, obj: Any) -> set[tuple[str, str]]:
    return set() if reflector._kind.resource in (POD, STATEFUL_SET) else take(reflector, kind, obj)


Reflector._take = take_late  # type: ignore[method-assign]
sys.exit(app.main())
