"""The exception that each error response of the API server becomes, and the events of a watch."""

from __future__ import annotations

import json

import pytest

from dtj_operator import errors
from dtj_operator.kube.client import EVENTS_AT_ONCE, failure, few_events


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "{}", errors.Invalid),
        (401, "{}", errors.NotAuthenticated),
        (403, "{}", errors.Forbidden),
        (404, "{}", errors.ObjectNotFound),
        (409, "{}", errors.Conflict),
        (410, "{}", errors.Gone),
        (422, "{}", errors.Invalid),
        (429, "{}", errors.Transient),
        (500, '{"message": "etcdserver: request timed out"}', errors.Transient),
        (
            500,
            '{"message": "failed to create typed patch object (/x; apps/v1): .spec.x: field not declared"}',
            errors.Invalid,
        ),
        (500, '{"message": "failed to convert new object (/x; apps/v1): quantities must match"}', errors.Invalid),
        (503, "not json <html>", errors.Transient),
        (302, "", errors.Transient),
    ],
)
def test_error_response_maps_to_its_exception(status: int, text: str, kind: type[errors.KubeError]) -> None:
    error = failure(status, text.encode(), "GET", "/x")
    assert type(error) is kind
    assert error.status == status
    assert error.message


def test_events_of_a_large_chunk_come_in_short_lists() -> None:
    sent = [
        {"type": "ADDED", "object": {"metadata": {"name": str(number)}}} for number in range(2 * EVENTS_AT_ONCE + 1)
    ]
    lists = list(few_events([json.dumps(event).encode() for event in sent] + [b""], "/pods"))
    assert [event for events in lists for event in events] == sent
    assert max(map(len, lists)) == EVENTS_AT_ONCE


def test_events_before_an_error_are_kept() -> None:
    line = json.dumps({"type": "ADDED", "object": {}}).encode()
    expired = json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}).encode()
    lists = few_events([line] * EVENTS_AT_ONCE + [expired], "/pods")
    assert len(next(lists)) == EVENTS_AT_ONCE
    with pytest.raises(errors.Gone):
        next(lists)
