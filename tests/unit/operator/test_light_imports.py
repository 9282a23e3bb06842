"""The operator imports the asynchronous half of the Kubernetes client alone."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_operator_imports_none_of_what_the_synchronous_client_needs() -> None:
    heavy = ("requests", "google.auth", "oauthlib", "websocket", "urllib3")
    assert run(f"import sys, dtj_operator.app; print([m for m in {heavy!r} if m in sys.modules])") == "[]"


def test_modules_of_the_client_can_still_be_imported_by_name() -> None:
    program = "import dtj_operator, kubernetes.config; print(kubernetes.config.load_kube_config.__name__)"
    assert run(program) == "load_kube_config"


def test_package_that_somebody_has_imported_before_stays() -> None:
    program = "import kubernetes; before = kubernetes; import dtj_operator.app, kubernetes; print(kubernetes is before)"
    assert run(program + "; print(hasattr(kubernetes, 'watch'))") == "True\nTrue"
