"""The chart's Grafana dashboard, from a table of panels."""

from __future__ import annotations

import json
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OPERATOR = 'namespace=~"$operator"'
JOB = 'namespace=~"$namespace", job=~"$job"'
# Jobs of two namespaces may have one name.
BY_JOB, LEGEND = "namespace, job", "{{namespace}}/{{job}}"
# Other programs of the operator's namespace export process_* too.
OURS = "and on (namespace, pod) dtj_build_info"
WIDTH, HEIGHT = 8, 8
# A number of things: Grafana's axis would otherwise have labels such as 0.2, and end at 100 where all lines are at 0.
COUNT = "count"

# Row -> panels: title, unit of Grafana, and (query, legend) of each line.
ROWS: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "Jobs": [
        ("Jobs by phase", COUNT, [(f"sum by (phase) (dtj_jobs{{{OPERATOR}}})", "{{phase}}")]),
        (
            "Ended jobs per hour",
            COUNT,
            [
                (
                    f"sum by (result, reason) (increase(dtj_jobs_finished_total{{{OPERATOR}}}[1h])) > 0",
                    "{{result}} {{reason}}",
                )
            ],
        ),
        (
            "Restarts per hour",
            COUNT,
            [(f"sum by (kind) (increase(dtj_job_restarts_total{{{OPERATOR}}}[1h]))", "{{kind}}")],
        ),
        (
            "Restarts per hour by reason",
            COUNT,
            [(f"sum by (reason) (increase(dtj_job_restart_reasons_total{{{OPERATOR}}}[1h])) > 0", "{{reason}}")],
        ),
        (
            "Recovery by phase, 90th percentile",
            "s",
            [
                (
                    "histogram_quantile(0.9, sum by (phase, le) "
                    f"(rate(dtj_job_recovery_seconds_bucket{{{OPERATOR}}}[1h]))) > 0",
                    "{{phase}}",
                )
            ],
        ),
        (
            "Steps repeated after restarts, per hour",
            COUNT,
            [(f"sum(increase(dtj_job_lost_steps_total{{{OPERATOR}}}[1h]))", "steps")],
        ),
        (
            "Nodes avoided per day",
            COUNT,
            [(f"sum by (reason) (increase(dtj_job_nodes_avoided_total{{{OPERATOR}}}[1d])) > 0", "{{reason}}")],
        ),
        (
            "Sick nodes",
            COUNT,
            [(f"max by (believed) (dtj_sick_nodes{{{OPERATOR}}})", "believed: {{believed}}")],
        ),
        (
            "Jobs whose agents are listened to",
            COUNT,
            [(f"sum by (state) (dtj_agent_listeners{{{OPERATOR}}})", "{{state}}")],
        ),
    ],
    "Training": [
        ("Step", COUNT, [(f"max by ({BY_JOB}) (dtj_step{{{JOB}}})", LEGEND)]),
        ("Loss", "short", [(f"max by ({BY_JOB}) (dtj_loss{{{JOB}}})", LEGEND)]),
        ("Samples per second", "short", [(f"max by ({BY_JOB}) (dtj_samples_per_second{{{JOB}}})", LEGEND)]),
        ("Attempt", COUNT, [(f"max by ({BY_JOB}) (dtj_attempt{{{JOB}}})", LEGEND)]),
        (
            "Age of the newest checkpoint",
            "s",
            [(f"time() - max by ({BY_JOB}) (dtj_checkpoint_timestamp_seconds{{{JOB}}})", LEGEND)],
        ),
        (
            "Slow ranks: own time, to the median rank's",
            "short",
            [(f"max by ({BY_JOB}, rank) (dtj_straggler_ratio{{{JOB}}})", LEGEND + " rank {{rank}}")],
        ),
    ],
    "Operator": [
        (
            "Reconciles per second",
            "ops",
            [(f"sum by (result) (rate(dtj_reconcile_total{{{OPERATOR}}}[5m]))", "{{result}}")],
        ),
        (
            "Reconcile and queue, 99th percentile",
            "s",
            [
                (
                    "histogram_quantile(0.99, sum by (le) "
                    f"(rate(dtj_reconcile_duration_seconds_bucket{{{OPERATOR}}}[5m])))",
                    "reconcile",
                ),
                (
                    "histogram_quantile(0.99, sum by (le) "
                    f"(rate(dtj_workqueue_queue_duration_seconds_bucket{{{OPERATOR}}}[5m])))",
                    "wait for a worker",
                ),
            ],
        ),
        ("Jobs waiting for a worker", COUNT, [(f"sum(dtj_workqueue_depth{{{OPERATOR}}})", "jobs")]),
        (
            "Requests to the API server",
            "reqps",
            [(f"sum by (verb, code) (rate(dtj_kube_client_requests_total{{{OPERATOR}}}[5m]))", "{{verb}} {{code}}")],
        ),
        ("Status writes", "ops", [(f"sum(rate(dtj_status_writes_total{{{OPERATOR}}}[5m]))", "writes")]),
        (
            "Longest block of the event loop",
            "s",
            [
                (
                    "histogram_quantile(1, sum by (pod, le) "
                    f"(rate(dtj_event_loop_block_seconds_bucket{{{OPERATOR}}}[5m])))",
                    "{{pod}}",
                )
            ],
        ),
        ("Memory", "bytes", [(f"process_resident_memory_bytes{{{OPERATOR}}} {OURS}", "{{pod}}")]),
        ("Processor, in cores", "short", [(f"rate(process_cpu_seconds_total{{{OPERATOR}}}[5m]) {OURS}", "{{pod}}")]),
        ("Leader", COUNT, [(f"dtj_leader{{{OPERATOR}}}", "{{pod}}")]),
    ],
}  # fmt: skip


def render() -> str:
    """Returns the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in ROWS.items():
        panels.append({"type": "row", "title": row, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        for place, (title, unit, lines) in enumerate(members):
            x, y = place % 3 * WIDTH, top + 1 + place // 3 * HEIGHT
            panels.append(_panel(title, unit, lines, {"x": x, "y": y, "w": WIDTH, "h": HEIGHT}))
        top += 1 + (len(members) + 2) // 3 * HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    dashboard = {
        "title": "Distributed training jobs",
        "uid": "dtj",
        "tags": ["dtj", "pytorch"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("operator", "Operator's namespace", "label_values(dtj_build_info, namespace)"),
                _variable("namespace", "Jobs' namespace", "label_values(dtj_attempt, namespace)"),
                _variable("job", "Job", 'label_values(dtj_attempt{namespace=~"$namespace"}, job)'),
            ]
        },
        "panels": panels,
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _panel(title: str, unit: str, lines: list[tuple[str, str]], place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _defaults(title, unit), "overrides": []},
        "options": {
            "tooltip": {"mode": "multi"},
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"},
        },
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(lines)
        ],
    }


def _defaults(title: str, unit: str) -> dict[str, Any]:
    if unit == COUNT:
        return {"unit": "short", "decimals": 0, "min": 0, "custom": {"axisSoftMax": 1}}
    return {"unit": unit} | ({} if title == "Loss" else {"min": 0})


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
