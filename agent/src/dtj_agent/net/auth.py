"""Authentication of agents: both sides prove that they hold the job's secret, then every message carries a MAC. No I/O.

    client: DTJ1 <nonce>                  server: <nonce> <HMAC(secret, "server" + nonces)>
    client: <HMAC(secret, "client" + nonces)>
    then, in both directions, lines of `<MAC> <JSON>`, where the MAC covers direction and sequence number.

The secret never crosses the network, a recorded session can't be replayed, and no line can be
forged, dropped or moved. Messages are not encrypted: their content is in the job's status anyway.
"""

from __future__ import annotations

import json
import os
from _operator import _compare_digest as same  # hmac.compare_digest without hmac
from typing import Any, List

from dtj_agent.errors import AuthError, WireError
from dtj_agent.net.encoding import encode
from dtj_contract import names
from dtj_contract.status_token import Mac

MAGIC = b"DTJ1 "
MAX_GREETING_BYTES = 160
_MAC_CHARS = 32


class Session:
    """One side of a connection: bytes in, messages out. `client`: whether this side dialled."""

    def __init__(self, secret: bytes, client: bool) -> None:
        self._secret = Mac(secret)
        self._client = client
        self._nonce = os.urandom(16).hex().encode()
        self._buffer = b""
        self._mac = self._secret  # of the session, once both nonces are known
        self._nonces = b""
        self._sent = self._seen = 0
        self.proven = False
        """Whether the other side has the secret, so that messages may be sealed and opened."""

    @property
    def has_greeted(self) -> bool:
        """Whether both nonces are known."""
        return bool(self._nonces)

    def greeting(self) -> bytes:
        """Returns the first line of a client."""
        return MAGIC + self._nonce + b"\n"

    def seal(self, message: Any) -> bytes:
        """Returns a message as a line. Raises WireError if it is too long."""
        return self.seal_encoded(encode(message))

    def seal_encoded(self, payload: bytes) -> bytes:
        """Returns an encoded message as a line. Raises WireError if it is too long."""
        if len(payload) + _MAC_CHARS + 2 > names.MAX_FRAME_BYTES:
            raise WireError("a message of %d bytes is too long to send" % len(payload))
        line = self._tag(self._client, self._sent, payload) + b" " + payload + b"\n"
        self._sent += 1
        return line

    def feed(self, data: bytes) -> List[Any]:
        """Returns the messages that are complete with these bytes. Handshake replies wait in `take_reply`.

        Raises AuthError if the other side does not have the secret, WireError if it breaks the
        protocol.
        """
        messages: List[Any] = []
        self._buffer += data
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if len(line) > (names.MAX_FRAME_BYTES if self.proven else MAX_GREETING_BYTES):
                raise WireError("a line of more than %d bytes" % len(line))
            if not found:
                return messages
            self._buffer = rest
            if self.proven:
                messages.append(self._open(line))
            else:
                self._greet(line)

    _reply = b""

    def take_reply(self) -> bytes:
        """Returns the bytes of the handshake that are to be sent now."""
        reply, self._reply = self._reply, b""
        return reply

    # --- handshake and MAC ------------------------------------------------------------------------

    def _greet(self, line: bytes) -> None:
        if not self._client and not self._nonces:
            theirs = line[len(MAGIC) :]
            if not line.startswith(MAGIC) or len(theirs) != 32:
                raise WireError("not an agent's greeting")
            self._agree(theirs + self._nonce)
            self._reply = self._nonce + b" " + self._proof(b"server") + b"\n"
        elif not self._client:
            self._verify(b"client", line)
        else:
            theirs, _, proof = line.partition(b" ")
            if len(theirs) != 32:
                raise WireError("not an agent's answer")
            self._agree(self._nonce + theirs)
            self._verify(b"server", proof)
            self._reply = self._proof(b"client") + b"\n"

    def _agree(self, nonces: bytes) -> None:
        self._nonces = nonces
        self._mac = Mac(self._secret.digest(b"session" + nonces))

    def _proof(self, role: bytes) -> bytes:
        return self._secret.hex(role + self._nonces).encode()

    def _verify(self, role: bytes, proof: bytes) -> None:
        if not same(proof, self._proof(role)):
            raise AuthError("the peer does not have this job's secret")
        self.proven = True

    def _tag(self, from_client: bool, sequence: int, payload: bytes) -> bytes:
        head = (b"c" if from_client else b"s") + sequence.to_bytes(8, "big")
        return self._mac.hex(head + payload)[:_MAC_CHARS].encode()

    def _open(self, line: bytes) -> Any:
        tag, _, payload = line.partition(b" ")
        if not same(tag, self._tag(not self._client, self._seen, payload)):
            raise WireError("a message with a wrong MAC")
        self._seen += 1
        try:
            return json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise WireError("a message that is not JSON") from error
