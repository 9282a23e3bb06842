"""The real promtool on alerts and dashboard: in `make test-long`, because its build takes ten minutes on two cores."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from hack.cluster import gobuild
from tests.integration.chart.test_monitoring import RULES, queries


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(gobuild.binary("promtool")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_promtool_accepts_every_rule() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_only_then() -> None:
    done = promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yaml")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"dashboard:query:{n}", "expr": expr} for n, expr in enumerate(queries())]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
