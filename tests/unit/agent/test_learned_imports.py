"""The warm process imports for the next attempt what the script has imported, unless that can't be forked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dtj_agent.warm import background, learned, successor
from tests.unit.agent.test_warm import drive
from tests.unit.agent.warm_site import STEP, write_site

SCRIPT = "import sys; print('heavy.part' in sys.modules); import heavy.part, beside\n" + STEP
# A stand-in for an import that takes long: it waits in the warm process alone, which has no attempt.
WAITS = """
import os, time
while 'IN_WORKER' not in os.environ and not os.path.exists(os.environ['GO']):
    time.sleep(0.005)
"""
BAD = {
    "threads": "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "reads_rank": "import os; rank = int(os.environ.get('LOCAL_RANK', 0))",
    "opens_socket": "import socket; kept = socket.socket()",
    "starts_process": "import subprocess; kept = subprocess.Popen(['sleep', '600'])",
    "fails_alone": "import __main__; __main__.nosuch if 'IN_WORKER' not in __import__('os').environ else None",
    "ends": "import os; 'IN_WORKER' in os.environ or os._exit(3)",
}
# Modules whose import depends on what the script has done before, with the reason to leave them out.
DEPENDS = {
    "keeps_changed": ("import os; os.environ.setdefault('SET_BY_SCRIPT', '2')", "it reads SET_BY_SCRIPT when"),
    "reads_changed": ("import os; os.environ.get('SET_BY_SCRIPT')", "it reads SET_BY_SCRIPT when"),
    "reads_attempt": ("import os; os.environ['DTJ_ATTEMPT'] if 'DTJ_ATTEMPT' in os.environ else 0", "it reads DTJ_AT"),
    "reads_argv": ("import sys; sys.argv[1:]", "it reads the script's arguments"),
    "changes_argv": ("import sys; sys.argv.append('--more')", "it changes the script's arguments"),
    "logs": ("import logging; logging.basicConfig()", "it configures logging, s"),
    "handles": ("import signal; signal.signal(10, lambda *_: None)", "it configures logging, signals"),
    "chooses": (
        "import os, multiprocessing.context as c\n'IN_WORKER' in os.environ or c._default_context.get_context()",
        "it configures logging, signals or multiprocessing",
    ),
    "loops": ("import os; [v for k, v in os.environ.items() if k.startswith('LOOPS_')]", "it reads LOOPS_OFF when"),
    "seeds": ("import random; random.seed(1)", "it configures logging, signals or multiprocessing, or seeds"),
    "draws": ("import random; random.random()", "it draws random numbers when it is imported, and the script seeds"),
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "lib" / "site-packages"
    write_site(folder, counted=True)
    return folder


def learn(scenario: str, site: Path, tmp_path: Path, text: str = SCRIPT, **request: Any) -> Any:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    (work / "beside.py").write_text("")
    (work / "script.py").write_text(text)
    environ = {"PYTHONPATH": str(site), "GO": str(tmp_path / "go")}
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    request = {"command": ["python3", "-u", "script.py"], **request}
    return drive(scenario, site, work, environ, folder=str(state), go=environ["GO"], **request)


def kept(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "state" / learned.LEARNED_FILE).read_text())


def test_second_attempt_finds_the_imports_of_the_first(site: Path, tmp_path: Path) -> None:
    found = learn("learned", site, tmp_path, SCRIPT + "import os; print(os.environ['SET_BY_HEAVY'])\n")
    first, second = found["results"]
    assert first == {"0": [0, "False\n1"], "1": [0, "False\n1"]}
    assert second == {"0": [0, "True\n1"], "1": [0, "True\n1"]}
    # User code, which may change between two attempts, is not among them.
    assert kept(tmp_path) == {
        "modules": ["heavy", "heavy.part"],
        "leftOut": {},
        "byRank": [],
        "changed": {"SET_BY_HEAVY": ["heavy"]},
        "afterSeed": [],
    }
    assert found["imported"] == ["warm process: 2 modules that the script imported are imported for its next start"]
    # A restarted agent begins with them: no worker has to report them again.
    again = learn("ranks", site, tmp_path)
    assert again["result"] == {"0": [0, "True"], "1": [0, "True"]}
    assert not any("for its next start" in line for line in again["logs"])


def test_attempt_that_fails_before_a_step_reports_its_imports(site: Path, tmp_path: Path) -> None:
    text = "import sys; print('heavy.part' in sys.modules); import heavy.part; sys.exit(3)"
    found = learn("learned", site, tmp_path, text)
    assert [result["0"] for result in found["results"]] == [[3, "False"], [3, "True"]]


def test_modules_that_cannot_be_forked_are_left_out_for_good(site: Path, tmp_path: Path) -> None:
    for name, text in BAD.items():
        (site / f"{name}.py").write_text(text + "\n")
    script = f"import os, {', '.join(BAD)}\n{SCRIPT}import signal, time; os.kill(os.getpid(), 9)"
    found = learn("learned", site, tmp_path, script)
    assert [result["0"] for result in found["results"]] == [[-9, "False"], [-9, "True"]]
    why = kept(tmp_path)["leftOut"]
    assert set(why) == set(BAD), why
    assert why["reads_rank"] == "it reads LOCAL_RANK when it is imported"
    assert why["ends"] == "its import ended the process"
    text = "warm process: no module threads (it has started 1 threads); it is imported ahead for each rank"
    assert text in found["logs"]
    again = learn("ranks", site, tmp_path, script)
    assert again["result"]["0"] == [-9, "True"]
    assert not any("no module" in line for line in again["logs"]), again["logs"]


@pytest.mark.parametrize("some", [slice(5), slice(5, None)])
def test_modules_that_depend_on_the_script_are_left_out(site: Path, tmp_path: Path, some: slice) -> None:
    """In two halves, because after eight tries in a row nothing more is learned."""
    tried = dict(list(DEPENDS.items())[some])
    for name, (text, _) in tried.items():
        (site / f"{name}.py").write_text(text + "\n")
    changes = "os.environ['SET_BY_SCRIPT'] = os.environ['LOOPS_OFF'] = '1'; sys.argv = [*sys.argv, '-v']"
    script = f"import os, sys; {changes}\nimport {', '.join(tried)}\n"
    found = learn("learned", site, tmp_path, script + SCRIPT)
    assert [result["0"] for result in found["results"]] == [[0, "False"], [0, "True"]]
    left_out = kept(tmp_path)["leftOut"]
    assert set(left_out) == set(tried), left_out
    for name, (_, why) in tried.items():
        assert left_out[name].startswith(why), name


@pytest.mark.parametrize("command", [["script.py", "--lr", "1"], ["-m", "script", "--lr", "1"]])
def test_import_finds_the_arguments_of_the_script(site: Path, tmp_path: Path, command: list[str]) -> None:
    (site / "reads_argv.py").write_text("import sys; lr = sys.argv[2]\n")
    (site / "changes_argv.py").write_text("import sys; sys.argv.append('--more')\n")
    text = "import reads_argv, sys; print(reads_argv.lr); import changes_argv; del sys.argv[3:]\n" + SCRIPT
    found = learn("learned", site, tmp_path, text, command=["python3", "-u", *command])
    assert [result["0"][1].splitlines() for result in found["results"]] == [["1", "False"], ["1", "True"]], found
    reads, changes = "it reads the script's arguments", "it changes the script's arguments"
    left = {"changes_argv": changes} | ({"reads_argv": reads} if command[0] == "-m" else {})
    assert kept(tmp_path)["leftOut"] == {name: f"{why} when it is imported" for name, why in left.items()}


def test_variable_that_a_script_had_set_for_an_import_alone_counts(site: Path, tmp_path: Path) -> None:
    (site / "reads_changed.py").write_text("import os; os.environ.get('SET_BY_SCRIPT')\n")
    set_for_it = "import os; os.environ['SET_BY_SCRIPT'] = '1'\nimport reads_changed\ndel os.environ['SET_BY_SCRIPT']\n"
    learn("learned", site, tmp_path, set_for_it + SCRIPT)
    assert kept(tmp_path)["leftOut"] == {"reads_changed": "it reads SET_BY_SCRIPT when it is imported"}


SETS = "import os; os.environ['Q_HOME'] = '/data'\n{more}\nimport q\n"


@pytest.mark.parametrize("more", ["", "import logging; logging.basicConfig()", "os.environ.get('RANK')"])
@pytest.mark.parametrize("command", [["script.py"], ["-m", "mt.train"]])
def test_variable_that_a_package_sets_before_it_imports_another_counts(
    site: Path, tmp_path: Path, more: str, command: list[str]
) -> None:
    (site / "q.py").write_text("import os; home = os.environ.get('Q_HOME', 'default')\n")
    (site / "sets.py").write_text(SETS.format(more=more))
    (site / "mt").mkdir()
    (site / "mt" / "__init__.py").write_text("")
    by_itself = SETS.format(more="") if command[0] == "-m" else "import sets, q\n"
    text = f"{by_itself}print(q.home)\n{SCRIPT}"
    (site / "mt" / "train.py").write_text(text.replace(", beside", ""))
    found = learn("learned", site, tmp_path, text, command=["python3", "-u", *command])
    assert [result["0"][1].splitlines()[0] for result in found["results"]] == ["/data", "/data"], found
    # A module that another one imports is learned before it, and so without what that one sets.
    assert kept(tmp_path)["leftOut"]["q"] == "it reads Q_HOME when it is imported"


def test_variable_of_a_package_that_is_imported_ahead_too_is_no_reason(site: Path, tmp_path: Path) -> None:
    """As scikit-learn reads what joblib sets."""
    (site / "sets.py").write_text("import os; os.environ['Q_HOME'] = '/data'\n")
    (site / "q.py").write_text("import sets, os; home = os.environ['Q_HOME']\n")
    found = learn("learned", site, tmp_path, "import q; print(q.home)\n" + SCRIPT)
    assert [result["0"][1].splitlines()[0] for result in found["results"]] == ["/data", "/data"], found
    assert kept(tmp_path)["leftOut"] == {}


LAZY = """
import importlib.util, os, sys
spec = importlib.util.find_spec("raises")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["raises"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
try:
    os.environ[b"A"] = "1"
except TypeError:
    pass
"""


def test_report_raises_nothing_into_the_script(site: Path, tmp_path: Path) -> None:
    found = learn("learned", site, tmp_path, LAZY + SCRIPT)
    assert [result["0"] for result in found["results"]] == [[0, "False"], [0, "True"]], found


def test_imports_that_cannot_be_found_out_are_logged(site: Path, tmp_path: Path) -> None:
    strange = """
import sys, types
class Spec:
    @property
    def name(self): raise ValueError("as asked")
sys.modules["strange"] = types.ModuleType("strange")
sys.modules["strange"].__spec__ = Spec()
"""
    found = learn("learned", site, tmp_path, strange + SCRIPT)
    assert [result["0"] for result in found["results"]] == [[0, "False"], [0, "False"]]
    assert "warm process: what the script has imported can't be found out: ValueError: as asked" in found["logs"]


def test_package_that_restores_all_variables_sets_none(site: Path, tmp_path: Path) -> None:
    (site / "restores.py").write_text(
        "import os; saved = dict(os.environ); os.environ.clear(); os.environ.update(saved)\n"
    )
    (site / "later.py").write_text("import os; os.environ['PATH']\n")
    learn("learned", site, tmp_path, "import restores, later\n" + SCRIPT)
    assert kept(tmp_path)["leftOut"] == {}


def test_changes_of_two_reports_are_united(tmp_path: Path) -> None:
    for name, changed in (
        (learned.LEARNED_FILE, {"A": ["a"], "B": [], "C": ["c"]}),
        (learned.IMPORTS_FILE, {"A": ["b"], "B": ["b"], "D": []}),
    ):
        (tmp_path / name).write_text(json.dumps({"changed": changed}))
    assert learned.read(str(tmp_path)).changed == {"A": ["a", "b"], "B": [], "C": ["c"], "D": []}


def test_script_may_replace_the_environment(site: Path, tmp_path: Path) -> None:
    found = learn("learned", site, tmp_path, "import os; os.environ = dict(os.environ)\n" + SCRIPT)
    assert [result["0"] for result in found["results"]] == [[0, "False"], [0, "True"]], found


def test_loop_over_all_variables_reads_none(site: Path, tmp_path: Path) -> None:
    # A variable of a moment's absence is not the script's.
    reads = "os.environ['PATH'], os.get_exec_path(), dict(os.environ), [k for k, v in os.environ.items()]"
    (site / "copies.py").write_text(f"import os; kept = {reads}\n")
    clears = "saved = dict(os.environ); os.environ.clear(); os.environ.update(saved)\n"
    text = f"import os\n{clears}os.environ['SET_BY_SCRIPT'] = '1'\nimport copies\nprint(type(os.environ).__name__)\n"
    found = learn("learned", site, tmp_path, text + SCRIPT)
    assert found["results"][1]["0"] == [0, "_Environ\nTrue"]
    assert kept(tmp_path)["leftOut"] == {}


def test_imports_reported_during_a_try_are_not_lost(site: Path, tmp_path: Path) -> None:
    (site / "heavy" / "part.py").write_text(WAITS)
    (site / "later.py").write_text("")
    script = "import os; again = os.path.exists('ran'); open('ran', 'w').close()\nif again: import later\n" + SCRIPT
    found = learn("reports_while_learning", site, tmp_path, script)
    assert [result["0"] for result in found["results"]] == [[0, "False"], [0, "False"]]
    assert kept(tmp_path)["modules"] == ["heavy", "heavy.part", "later"]


def test_successor_that_is_stopped_is_continued(site: Path, tmp_path: Path) -> None:
    found = learn("successor_stopped", site, tmp_path)
    assert [result["0"] for result in found["results"]] == [[0, "False"], [0, "True"]]
    assert found["same"], found["logs"]
    assert not any("without" in line for line in found["logs"]), found["logs"]


def test_successor_that_ends_before_its_first_import_is_bad() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    try:
        verdict = successor.Successor(0, reader, 0.0).news(0.0)
    finally:
        os.close(reader)
    assert verdict is not None
    assert verdict.bad, "an empty name would be a success"


def test_workers_are_forked_while_imports_still_run(site: Path, tmp_path: Path) -> None:
    (site / "heavy" / "part.py").write_text(WAITS)
    found = learn("forks_while_learning", site, tmp_path)
    assert [result["0"] for result in found["results"]] == [[0, "False"], [0, "False"], [0, "True"]]
    assert not any("without" in line for line in found["logs"])


def test_successor_that_is_killed_is_replaced_with_its_warm_process(site: Path, tmp_path: Path) -> None:
    found = learn("successor_killed", site, tmp_path)
    assert [result["0"] for result in found["results"]] == [[0, "False"], [0, "True"]]


def test_package_of_torch_is_its_part() -> None:
    assert learned.package("torch.optim.adamw") == "torch.optim"
    assert learned.package("lightning.pytorch.trainer") == "lightning"


def test_package_of_the_command_is_user_code() -> None:
    command = ["python3", "-u", "-m", "pytest"]
    assert "_pytest" in {name.partition(".")[0] for name in learned.third_party(frozenset(), command)}
    assert "pytest" not in learned.third_party(frozenset(), command)
    assert "pytest" in learned.third_party(frozenset(), ["python3", "train.py"])


def test_library_of_cffi_that_claims_to_be_a_module_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:  # as cryptography keeps one in sys.modules
        __class__ = ModuleType  # type: ignore[assignment]

    library = Library()
    assert isinstance(library, ModuleType)
    monkeypatch.setitem(sys.modules, "cryptography_stub.lib", library)
    found = learned.third_party(frozenset(), ["python3", "train.py"])
    assert "pytest" in found
    assert "cryptography_stub.lib" not in found


@pytest.mark.parametrize("text", ["", "[", "[]", '{"modules": 1, "leftOut": []}', '{"modules": [1, "a b", "a..b"]}'])
def test_file_that_is_not_whole_holds_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / learned.LEARNED_FILE).write_text(text)
    assert learned.read(str(tmp_path)) == learned.Learned([], {})


GIB = 1 << 30


@pytest.mark.parametrize(
    ("used", "cached", "room"), [(3 * GIB, 0, True), (3 * GIB + 1, 0, False), (4 * GIB, GIB, True)]
)
def test_container_with_little_memory_has_no_room(tmp_path: Path, used: int, cached: int, room: bool) -> None:
    texts = {"max": f"{4 * GIB}\n", "current": f"{used}\n", "stat": f"anon 1\ninactive_file {cached}\n"}
    for name, text in texts.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert background.has_room(root=str(tmp_path)) is room
    (tmp_path / "memory.max").write_text("max\n")
    assert background.has_room(root=str(tmp_path))
    assert background.has_room(root=os.devnull)
