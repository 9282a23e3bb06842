"""The agent's exceptions.

AgentError
├── SettingsError   an environment variable is missing or wrong; the message names it and says what to set
├── AuthError       the other side does not have this job's secret
└── WireError       what came over the network is not our protocol: too long, forged, not JSON, wrong fields
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of everything that this package raises on purpose."""


class SettingsError(AgentError):
    """The environment is not one that an agent can start in."""


class AuthError(AgentError):
    """A peer could not prove that it holds the job's secret."""


class WireError(AgentError):
    """A peer broke the protocol; its connection is closed."""
