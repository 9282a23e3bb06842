"""restart.rules: what the user has decided about certain failures; the first rule that matches holds. Pure."""

from __future__ import annotations

import signal
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from dtj_contract import names, rule_names
from dtj_contract.log_pattern import LogPattern

Json = Dict[str, Any]

_KEYS = {"action", "exitCodes", "exitCodePreset", "signals", "reasons", "logPattern"}
PRESETS = {"Usage": (2, 64), "Permanent": range(1, 128), "Retryable": range(128, 256)}
"""Permanent and Retryable: as restartPolicy ExitCode of Kubeflow's training operator."""


class RestartRule(NamedTuple):
    """A rule matches if each of its matchers does; a matcher that is None is not set."""

    number: int
    """Place in restart.rules, from 0."""
    action: str
    exit_codes: Optional[Tuple[int, ...]] = None
    preset: Optional[str] = None
    signals: Optional[Tuple[str, ...]] = None
    reasons: Optional[Tuple[str, ...]] = None
    log_pattern: Optional[LogPattern] = None

    def matches(self, failure: Json) -> bool:
        code, name = shell_exit_code(failure), signal_of(failure)
        return (
            (self.exit_codes is None or code in self.exit_codes)
            and (self.preset is None or code in PRESETS[self.preset])
            and (self.signals is None or name in self.signals)
            and (self.reasons is None or failure.get("reason") in self.reasons)
            and (self.log_pattern is None or self.log_pattern.is_in(_text(failure)))
        )


def first_match(rules: Tuple[RestartRule, ...], failure: Json) -> Optional[RestartRule]:
    """Returns the rule that decides about `failure`; None if no rule does."""
    return next((rule for rule in rules if rule.matches(failure)), None)


def read(raw: Any) -> Tuple[Tuple[RestartRule, ...], List[str]]:
    """Returns the rules in `raw`, and why others were left out.

    A rule of a newer version may have a matcher that this version does not know. Without that
    matcher the rule would match too much, so the whole rule is left out.
    """
    rules, problems = [], []
    for number, item in enumerate(raw[: rule_names.MAX_RULES] if isinstance(raw, list) else []):
        try:
            rules.append(_read_rule(number, item))
        except (ValueError, TypeError, AttributeError) as error:
            problems.append("restart.rules[%d] is left out: %s" % (number, error))
    return tuple(rules), problems


def shell_exit_code(failure: Json) -> Optional[int]:
    """Returns the exit code as a shell reports it: 128 and the signal's number for a killed process."""
    code = failure.get("exitCode")
    if not isinstance(code, int):
        return None
    return 128 - code if code < 0 else code


def signal_of(failure: Json) -> Optional[str]:
    """Returns the name of the signal that ended the worker, or the command that a shell ran for it."""
    code = shell_exit_code(failure)
    if code is None or code <= 128:
        return None
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return None


def _read_rule(number: int, raw: Json) -> RestartRule:
    raw = {key: value for key, value in raw.items() if value is not None}
    unknown = sorted(set(raw) - _KEYS)
    if unknown:
        raise ValueError("this version of the agent does not know %s" % ", ".join(unknown))
    if raw.get("action") not in names.RULE_ACTIONS:
        raise ValueError("this version of the agent does not know action %.40r" % raw.get("action"))
    if len(raw) == 1:
        raise ValueError("it has no matcher")
    if raw.get("exitCodePreset", "Usage") not in PRESETS:
        raise ValueError("this version of the agent does not know preset %.40r" % raw["exitCodePreset"])
    return RestartRule(
        number,
        raw["action"],
        tuple(int(code) for code in raw["exitCodes"]) if "exitCodes" in raw else None,
        raw.get("exitCodePreset"),
        tuple(str(name) for name in raw["signals"]) if "signals" in raw else None,
        tuple(str(reason) for reason in raw["reasons"]) if "reasons" in raw else None,
        LogPattern(raw["logPattern"]) if "logPattern" in raw else None,
    )


def _text(failure: Json) -> str:
    """Returns what the worker wrote last, and the error that it recorded."""
    return "%s\n%s" % (str(failure.get("logTail") or "")[-names.LOG_TAIL_BYTES :], failure.get("message") or "")
