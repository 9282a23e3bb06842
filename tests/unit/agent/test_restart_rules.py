"""restart.rules: which failures a rule matches, and what an agent of another version makes of it."""

from __future__ import annotations

import re
import time
from random import Random
from typing import Any, get_args

import pytest

from dtj_agent.group import restart_rules
from dtj_contract import names, rule_names
from dtj_contract.log_pattern import LogPattern
from dtj_core.api import restart as api
from tests.unit.api.specs_restart import GOOD

FAILURE: dict[str, Any] = {"reason": "WorkerFailed", "message": "rank 0 exited", "exitCode": 1, "logTail": ""}


def matches(rule: dict[str, Any], **failure: Any) -> bool:
    rules, problems = restart_rules.read([{**rule, "action": "Fail"}])
    assert not problems
    return restart_rules.first_match(rules, {**FAILURE, **failure}) is not None


MATCHES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "a code of the list": ({"exitCodes": [3, 1]}, {}, True),
    "a code that is not in the list": ({"exitCodes": [3]}, {}, False),
    "a killed worker has the code of a shell": ({"exitCodes": [137]}, {"exitCode": -9}, True),
    "a lost pod has no code": ({"exitCodes": [1]}, {"exitCode": None}, False),
    "a usage error of argparse": ({"exitCodePreset": "Usage"}, {"exitCode": 2}, True),
    "a usage error of sysexits": ({"exitCodePreset": "Usage"}, {"exitCode": 64}, True),
    "1 is no usage error": ({"exitCodePreset": "Usage"}, {}, False),
    "127 is permanent": ({"exitCodePreset": "Permanent"}, {"exitCode": 127}, True),
    "128 is not": ({"exitCodePreset": "Permanent"}, {"exitCode": 128}, False),
    "a signal is retryable": ({"exitCodePreset": "Retryable"}, {"exitCode": -11}, True),
    "a signal by its name": ({"signals": ["SIGBUS", "SIGSEGV"]}, {"exitCode": -11}, True),
    "a signal behind a shell": ({"signals": ["SIGSEGV"]}, {"exitCode": 139}, True),
    "another signal": ({"signals": ["SIGSEGV"]}, {"exitCode": -9}, False),
    "an exit is no signal": ({"signals": ["SIGSEGV"]}, {"exitCode": 11}, False),
    "a real-time signal has no name": ({"signals": ["SIGSEGV"]}, {"exitCode": -35}, False),
    "a reason of the list": ({"reasons": ["Preempted", "WorkerFailed"]}, {}, True),
    "a reason that is not in the list": ({"reasons": ["Preempted"]}, {}, False),
    "a pattern in the log": ({"logPattern": "ECC"}, {"logTail": "uncorrectable ECC error"}, True),
    "a pattern at the start of a line": ({"logPattern": "^ECC"}, {"logTail": "a\nECC"}, True),
    "a pattern at the end of a line": ({"logPattern": "ECC$"}, {"logTail": "ECC\nb"}, True),
    "a pattern of another case": ({"logPattern": "(?i)ecc"}, {"logTail": "ECC"}, True),
    "a pattern in the message": ({"logPattern": "rank 0 ex"}, {}, True),
    "a pattern that is nowhere": ({"logPattern": "ECC"}, {"logTail": "ecc"}, False),
    "a pattern before the tail": ({"logPattern": "ECC"}, {"logTail": "ECC" + "x" * 2048}, False),
    "both of two matchers": ({"exitCodes": [1], "logPattern": "ECC"}, {"logTail": "ECC"}, True),
    "one of two matchers": ({"exitCodes": [1], "logPattern": "ECC"}, {}, False),
}


@pytest.mark.parametrize(("rule", "failure", "expected"), MATCHES.values(), ids=MATCHES)
def test_rule_matches_failures(rule: dict[str, Any], failure: dict[str, Any], expected: bool) -> None:
    assert matches(rule, **failure) is expected


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"exitCodes": [1], "onNodes": ["a"], "action": "Fail"}, "does not know onNodes"),
        ({"exitCodes": [1], "action": "Migrate"}, "does not know action 'Migrate'"),
        ({"exitCodePreset": "New", "action": "Fail"}, "does not know preset 'New'"),
        ({"logPattern": "(a", "action": "Fail"}, "missing )"),
        ({"action": "Fail"}, "no matcher"),
        ({"exitCodes": 1, "action": "Fail"}, "not iterable"),
        ("Fail", "no attribute"),
    ],
)
def test_rule_of_another_version_is_left_out_with_a_reason(raw: Any, problem: str) -> None:
    rules, problems = restart_rules.read([raw, {"exitCodes": [1], "action": "Fail"}])
    assert [rule.number for rule in rules] == [1], "the others keep their places"
    assert problem in problems[0]


@pytest.mark.parametrize("case", GOOD)
def test_agent_reads_every_rule_that_the_api_accepts(case: str) -> None:
    raw = GOOD[case]["restart"].get("rules", [])
    rules, problems = restart_rules.read(raw)
    assert (len(rules), problems) == (len(raw), [])


def test_lists_of_the_api_are_those_of_the_contract() -> None:
    assert get_args(api.Action) == names.RULE_ACTIONS
    assert get_args(api.RuleSignal) == rule_names.RULE_SIGNALS
    assert set(get_args(api.RuleReason)) == set(rule_names.RULE_REASONS)


# --- the search in a log ----------------------------------------------------------------------------------------------


def random_pattern(random: Random, depth: int) -> str:
    kind = random.random()
    if depth == 0 or kind < 0.3:
        return random.choice(["a", "b", ".", "[ab]", "[^a]", "^", "$", r"\b", r"\w", r"\s", r"\D", "\n"])
    if kind < 0.6:
        return random_pattern(random, depth - 1) + random_pattern(random, depth - 1)
    if kind < 0.75:
        return f"(?:{random_pattern(random, depth - 1)}|{random_pattern(random, depth - 1)})"
    return f"(?:{random_pattern(random, depth - 1)})" + random.choice(["*", "+", "?", "{1,2}", "{2}", "*?"])


def test_log_pattern_finds_what_python_finds() -> None:
    random = Random(1)
    for _ in range(1500):
        pattern = random.choice(["", "(?i)", "(?s)"]) + random_pattern(random, 4)
        text = "".join(random.choice("abAB \n_1") for _ in range(random.randint(0, 8)))
        if len(pattern) <= 256:
            expected = re.search(pattern, text, re.ASCII | re.MULTILINE) is not None
            assert LogPattern(pattern).is_in(text) == expected, (pattern, text)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*b", ".*a.*a.*a.*a.*b", "(a?){200}b"])
def test_log_pattern_takes_bounded_time_where_backtracking_would_not_end(pattern: str) -> None:
    began = time.process_time()
    assert not LogPattern(pattern).is_in("a" * 2048 + "!")
    assert time.process_time() - began < 20
