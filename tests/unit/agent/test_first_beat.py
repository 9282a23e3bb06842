"""A group that can grow by a pod waits until its warm process is ready, and no longer."""

from __future__ import annotations

from pathlib import Path

from dtj_contract import names
from tests.unit.agent.test_master_port import run
from tests.unit.agent.warm_site import write_site

LINKED = """
agent.workers.warm_up()
agent._link.on_open()
print("result", json.dumps(sent), flush=True)
sent.clear()
open(os.environ["MAY_IMPORT"], "w").close()
while "warming" in answer("beat"):
    pass
print("result", json.dumps(agent.workers._warm.is_ready), flush=True)
"""


def test_heartbeat_follows_the_hello_and_the_end_of_the_imports(tmp_path: Path) -> None:
    """The heartbeats of each second are not on in this agent."""
    write_site(tmp_path / "site")
    blocks = "import os, time\nwhile not os.path.exists(os.environ['MAY_IMPORT']): time.sleep(0.01)\n"
    (tmp_path / "site" / "torch" / "distributed.py").write_text(blocks)
    (tmp_path / "train.py").write_text("import torch\n")
    environ = {
        "PYTHONPATH": str(tmp_path / "site"), "MAY_IMPORT": str(tmp_path / "may"),
        names.ENV_WARM_WORKERS: names.WARM_AUTO,
    }  # fmt: skip
    first, last = run(LINKED, tmp_path, (str(tmp_path / "train.py"),), **environ)
    assert [(message["type"], message.get("warming")) for message in first] == [("hello", None), ("beat", True)]
    assert last is True
