"""The storage of a sweep while another process holds its lock."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dtj.errors import LocalRunError
from dtj.tune import spec, study
from tests.unit.client.sweeps import sweep


def test_a_held_storage_is_reported_and_usable_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "BUSY_SECONDS", 0.1)
    path, document = tmp_path / "sweep.db", spec.parse(sweep(), "sweep.yaml")
    store = study.StudyStore(path, document)
    message = r"sweep\.db can't be used as the sweep's storage: .*database is locked"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin exclusive")
    with pytest.raises(LocalRunError, match=message), study.reported(path):
        store.ask(None)
    with pytest.raises(LocalRunError, match=message):
        study.StudyStore(path, document)
    holder.close()
    assert store.details() == []
    assert store.ask(None) == 0
