"""The HTTP pages of an agent: /status, /metrics, /healthz."""
