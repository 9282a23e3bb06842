"""The shapes of an SVG, the colours of its themes, and text that any document can hold. Pure."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

LIGHT = {
    "load": "#8fb7e8", "steps": "#2e9e63", "lost": "#e8913a", "stall": "#c9b8e8", "stop": "#9aa3ad", "wait": "#d5dae0",
    "down": "#c0362c", "unknown": "#b0a890", "text": "#1d2329", "soft": "#5b6570", "line": "#d9dee3", "back": "#ffffff",
}  # fmt: skip
DARK = {
    "load": "#3f6ea8", "steps": "#2f8f5c", "lost": "#d98327", "stall": "#7a64a8", "stop": "#6d7680", "wait": "#3b434c",
    "down": "#e2574c", "unknown": "#7d765f", "text": "#e6eaee", "soft": "#9aa5b1", "line": "#333b44", "back": "#14181c",
}  # fmt: skip
FONTS = (
    "text{font:12px system-ui,sans-serif}.title{font-size:17px;font-weight:600}.end{text-anchor:end}"
    ".mid{text-anchor:middle}"
)
# Characters that no XML document may hold.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: object) -> str:
    """Returns text that XML and HTML can hold."""
    return escape(_FORBIDDEN.sub("\ufffd", str(text)))


def label(x: float, y: float, text: str, kind: str = "") -> str:
    """Returns a text at its base line, with CSS classes."""
    return f'<text x="{x:.1f}" y="{y:.1f}"' + (f' class="{kind}"' if kind else "") + f">{clean(text)}</text>"


def box(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    """Returns a rectangle that shows its title under the pointer."""
    rectangle = f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}">'
    return f"{rectangle}<title>{clean(title)}</title></rect>"


def stroke(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Returns a straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def page_style() -> str:
    """Returns the style of a page around a drawing, light and dark."""

    def colours(theme: dict[str, str]) -> str:
        return f"body{{background:{theme['back']};color:{theme['text']}}}pre{{border-left:3px solid {theme['line']}}}"

    return (
        "body{font:15px/1.45 system-ui,sans-serif;margin:0}main{max-width:1040px;margin:0 auto;padding:16px}"
        "svg{max-width:100%;height:auto}pre{overflow-x:auto;padding-left:12px;font-size:13px}"
        f"{colours(LIGHT)}@media (prefers-color-scheme:dark){{{colours(DARK)}}}"
    )
