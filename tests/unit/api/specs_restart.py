"""Cases of specs.py about spec.restart: rules, and the end without progress."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def rules(*given: Object) -> Object:
    return {"restart": {"rules": list(given)}}


GOOD: dict[str, Object] = {
    "no rule": rules(),
    "a rule of each matcher": rules(
        {"exitCodes": [1, 255], "action": "Restart"},
        {"exitCodePreset": "Retryable", "action": "RestartFree"},
        {"signals": ["SIGSEGV", "SIGBUS"], "action": "RestartElsewhere"},
        {"reasons": ["ImportFailed", "Preempted"], "action": "Restart"},
        {"logPattern": r"(?i)^CUDA error: .*\b(ECC|NVLink)\b [0-9a-f]{1,8}$", "action": "RestartElsewhere"},
    ),
    "a rule of all matchers": rules(
        {
            "exitCodes": [1],
            "exitCodePreset": "Permanent",
            "signals": ["SIGABRT"],
            "reasons": ["WorkerFailed"],
            "logPattern": "x",
            "action": "Fail",
        }
    ),
    "a pattern that would block an engine that backtracks": rules({"logPattern": "(a+)+$", "action": "Fail"}),
    "a pattern of 256 characters": rules({"logPattern": "x" * 256, "action": "Fail"}),
    "a pattern with a dollar sign and a quote": rules({"logPattern": "'\\$(HOME)'", "action": "Fail"}),
    "as many rules as there may be": rules(*[{"exitCodes": [9], "action": "Fail"}] * 32),
    "an end without progress": {"restart": {"maxRestartsWithoutProgress": 1}},
}

BAD: dict[str, tuple[Object, str]] = {
    "no end without progress": (
        {"restart": {"maxRestartsWithoutProgress": 0}},
        "spec.restart.maxRestartsWithoutProgress",
    ),
    "a rule without an action": (rules({"exitCodes": [1]}), "spec.restart.rules[0].action"),
    "a rule without a matcher": (rules({"action": "Fail"}), "spec.restart.rules[0]"),
    "a rule with an unknown matcher": (
        rules({"onRanks": [0], "exitCodes": [1], "action": "Fail"}),
        "spec.restart.rules[0].onRanks",
    ),
    "an action of Kubernetes's": (rules({"exitCodes": [1], "action": "FailJob"}), "spec.restart.rules[0].action"),
    "the exit code of success": (rules({"exitCodes": [0], "action": "Fail"}), "spec.restart.rules[0].exitCodes[0]"),
    "an exit code beyond a byte": (
        rules({"exitCodes": [256], "action": "Fail"}),
        "spec.restart.rules[0].exitCodes[0]",
    ),
    "no exit codes in a list": (rules({"exitCodes": [], "action": "Fail"}), "spec.restart.rules[0].exitCodes"),
    "a preset that there is not": (
        rules({"exitCodePreset": "OOM", "action": "Fail"}),
        "spec.restart.rules[0].exitCodePreset",
    ),
    "a signal by its number": (rules({"signals": [9], "action": "Fail"}), "spec.restart.rules[0].signals[0]"),
    "a reason in other words": (rules({"reasons": ["OOM"], "action": "Fail"}), "spec.restart.rules[0].reasons[0]"),
    "more rules than there may be": (rules(*[{"exitCodes": [9], "action": "Fail"}] * 33), "spec.restart.rules"),
    **{
        f"a log pattern with {what}": (
            rules({"logPattern": pattern, "action": "Fail"}),
            "spec.restart.rules[0].logPattern",
        )
        for what, pattern in {
            "nothing": "",
            "too much": "x" * 257,
            "an open group": "(a",
            "two stars": "a**",
            "look-ahead": "a(?=b)",
            "look-behind": "(?<!a)b",
            "a backreference": r"(a)\1",
            "a Unicode class": r"\pL",
            "a POSIX class": "[[:alpha:]]",
            "a named group": "(?P<a>b)",
            "too many repetitions": "a{2000}",
        }.items()
    },
}
