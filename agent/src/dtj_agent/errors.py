"""The agent's exceptions.

AgentError
├── SettingsError   an environment variable is missing or wrong; the message names it and what to set
├── AuthError       the other side does not have this job's secret
└── WireError       bytes from the network are not our protocol: too long, forged, not JSON, wrong fields
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of everything that this package raises on purpose."""


class SettingsError(AgentError):
    """The agent can't start in this environment."""


class AuthError(AgentError):
    """A peer could not prove that it holds the job's secret."""


class WireError(AgentError):
    """A peer broke the protocol; its connection is closed."""
