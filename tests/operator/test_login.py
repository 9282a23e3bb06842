"""Logging in has a deadline too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

IMPATIENT = """
import sys
from dtj_operator import app
from dtj_operator.kube import login
login.LOGIN_SECONDS = 0.3
sys.exit(app.main())
"""


def test_a_login_plugin_that_never_answers_ends_the_operator_with_a_word_about_it(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["2"], "interactiveMode": "Never"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
    }
    kubeconfig, key = tmp_path / "kubeconfig", tmp_path / "key"
    kubeconfig.write_text(json.dumps(config))
    key.write_text("k" * 32)
    flags = ["--agent-image", "i", "--master-key-file", str(key), "--kubeconfig", str(kubeconfig)]
    done = subprocess.run([sys.executable, "-c", IMPATIENT, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "no way to log in to the API server: no answer in 0.3 s" in done.stderr
