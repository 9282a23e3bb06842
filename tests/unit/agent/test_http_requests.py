"""The store as the rendezvous of Horovod: HTTP requests on the port of TCPStore."""

from __future__ import annotations

import json

import pytest

from dtj_agent.store.http_requests import MAX_BODY_BYTES, MAX_HEAD_BYTES
from dtj_agent.store.key_store import KeyStore, ProtocolError, StoreClient
from tests.unit.agent.test_store import Served, served

__all__ = ["served"]
OK, MISSING = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 404 Not Found\r\n"


def put(path: str, body: bytes) -> bytes:
    return b"PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body


def get(path: str) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode()


def delete(path: str) -> bytes:
    return b"DELETE %s HTTP/1.1\r\ncontent-length: 0\r\n\r\n" % path.encode()


def answers(*requests: bytes, at_once: int = 1) -> bytes:
    """Returns what a store answers to requests that arrive in parts of so many bytes."""
    client = StoreClient(KeyStore())
    data = b"".join(requests)
    for begin in range(0, len(data), at_once):
        client.feed(data[begin : begin + at_once])
    return bytes(client.out)


@pytest.mark.parametrize("at_once", [1, 7, 4096])
def test_ranks_put_read_and_remove_keys(at_once: int) -> None:
    body = bytes(range(256))
    found = answers(
        get("/global/0"), put("/global/0", body), get("/global/0"), get("/local_a/0"), delete("/global/0"),
        delete("/global/0"), get("/global/0"), at_once=at_once,
    )  # fmt: skip
    empty = OK + b"Content-Length: 0\r\n\r\n"
    gone = MISSING + b"Content-Length: 0\r\n\r\n"
    assert found == gone + empty + OK + b"Content-Length: 256\r\n\r\n" + body + gone + empty + empty + gone


def test_all_connections_share_the_values() -> None:
    store = KeyStore()
    one, other = StoreClient(store), StoreClient(store)
    one.feed(put("/global/1", b"address"))
    other.feed(get("/global/1"))
    assert other.out.endswith(b"\r\n\r\naddress")


BAD = {
    "another method": b"POST /a/b HTTP/1.1\r\n\r\n",
    "a method that begins like one": b"GRAB /a/b HTTP/1.1\r\n\r\n",
    "no path": b"GET a HTTP/1.1\r\n\r\n",
    "a line of two words": b"GET /a/b\r\n\r\n",
    "a length that is no number": b"PUT /a/b HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    "a negative length": b"PUT /a/b HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "a body without end": b"PUT /a/b HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
    "headers without end": b"GET /a/b HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES,
}


@pytest.mark.parametrize("case", BAD)
def test_rubbish_closes_the_connection(case: str) -> None:
    with pytest.raises(ProtocolError):
        answers(BAD[case], at_once=1024)


def test_one_port_serves_clients_of_torch_and_of_http(served: Served) -> None:
    found = served.script("""
        import http.client
        def ask(method, path, body=None):
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
            connection.request(method, path, body)
            response = connection.getresponse()
            return [response.status, response.read().decode()]
        store = connect()
        store.set("/global/0", "torch's")
        print(json.dumps([
            ask("GET", "/global/0"), ask("PUT", "/global/0", b"10.0.0.7"), ask("GET", "/global/0"),
            store.get("/global/0").decode(), store.num_keys(),
        ]))
    """)
    assert found == json.loads('[[404, ""], [200, ""], [200, "10.0.0.7"], "torch\'s", 1]')
