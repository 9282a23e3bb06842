"""The keys of the agents: one for each job, derived from the operator's master key."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

from dtj_contract import names
from dtj_core.plan.model import Object, Settings

DIGITS = 12


def agent_key(job_uid: str, settings: Settings) -> str:
    """Returns the key that the operator and the agents of a job share: 64 hex digits.

    The same job always has the same key.
    """
    return hmac.new(settings.master_key, job_uid.encode(), hashlib.sha256).hexdigest()


def digest(key: str) -> str:
    """Returns what may be shown of a key: enough to tell two keys apart."""
    return hashlib.sha256(b"agent key " + key.encode()).hexdigest()[:DIGITS]


def key_of(job_uid: str, child: Object, settings: Settings) -> str:
    """Returns the key of the agents that the StatefulSet `child` has started.

    That is the previous master key's if the annotation shows it, else the current one's.
    """
    if settings.previous_master_key is not None:
        key = agent_key(job_uid, replace(settings, master_key=settings.previous_master_key))
        if (child["metadata"].get("annotations") or {}).get(names.ANNOTATION_AGENT_KEY) == digest(key):
            return key
    return agent_key(job_uid, settings)
