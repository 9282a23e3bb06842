"""The exception that each error response of the API server becomes."""

from __future__ import annotations

import pytest

from dtj_operator import errors
from dtj_operator.kube.client import failure


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
