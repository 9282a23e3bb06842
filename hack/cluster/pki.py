"""Certificates for a throw-away control plane, by the openssl command line."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from hack.cluster import packages
from hack.cluster.shell import run


class Authority:
    """A certificate authority in its own folder, with elliptic keys, which take milliseconds to create."""

    def __init__(self, folder: Path) -> None:
        packages.need("openssl")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        self._issue(self.certificate, self.key, ["-subj", "/CN=dtj-test-ca"])

    def serving(self, name: str, addresses: Sequence[str]) -> tuple[Path, Path]:
        """Issues a server certificate for these DNS:… and IP:… names. Returns (certificate, key)."""
        return self._signed(name, f"/CN={name}", ["-addext", f"subjectAltName={','.join(addresses)}"])

    def client(self, name: str, user: str, groups: Sequence[str]) -> tuple[Path, Path]:
        """Issues a client certificate.

        Kubernetes reads the user from the common name and the groups from the organizations.
        """
        parts = [f"/O={_escape(group)}" for group in groups]
        return self._signed(name, f"{''.join(parts)}/CN={_escape(user)}", ["-addext", "extendedKeyUsage=clientAuth"])

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """Creates a key pair for signing service account tokens. Returns (public, private)."""
        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private], timeout=20)
        run(["openssl", "ec", "-in", private, "-pubout", "-out", public], timeout=20)
        return public, private

    def _signed(self, name: str, subject: str, more: Sequence[str]) -> tuple[Path, Path]:
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        self._issue(certificate, key, ["-subj", subject, "-CA", str(self.certificate), "-CAkey", str(self.key), *more])
        return certificate, key

    def _issue(self, certificate: Path, key: Path, arguments: Sequence[str]) -> None:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        out = ["-keyout", str(key), "-out", str(certificate)]
        run(["openssl", "req", "-x509", "-sha256", "-days", "365", *curve, *out, *arguments], timeout=20)


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace("/", "\\/").replace("+", "\\+")


def kubeconfig(path: Path, server: str, authority: Path, user: dict[str, str]) -> Path:
    """Writes a kubeconfig as JSON, which is YAML, with the certificates inside, so that the file is portable."""
    name = "dtj"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": encoded(authority)}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
    return path


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
