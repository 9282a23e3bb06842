"""The shapes of an SVG, the colours of its themes, and text that any document can hold. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 960.0, 96.0, 24.0
"""Pixels of a drawing, and of its margins for texts."""
LIGHT = {
    "load": "#8fb7e8", "steps": "#2e9e63", "lost": "#e8913a", "stall": "#c9b8e8", "stop": "#9aa3ad", "wait": "#d5dae0",
    "down": "#c0362c", "unknown": "#b0a890", "text": "#1d2329", "soft": "#5b6570", "line": "#d9dee3", "back": "#ffffff",
    "compute": "#35b08a", "data": "#e69f00", "wire": "#6aa9ea", "save": "#c986bd", "other": "#a9b1ba",
    "first": "#1f9e77", "second": "#3178c6", "third": "#e69f00", "hot": "#c0362c",
}  # fmt: skip
DARK = {
    "load": "#3f6ea8", "steps": "#2f8f5c", "lost": "#d98327", "stall": "#7a64a8", "stop": "#6d7680", "wait": "#3b434c",
    "down": "#e2574c", "unknown": "#7d765f", "text": "#e6eaee", "soft": "#9aa5b1", "line": "#333b44", "back": "#14181c",
    "compute": "#1a7a5c", "data": "#9a6c10", "wire": "#2f66a8", "save": "#8c4a81", "other": "#5d666f",
    "first": "#2bb58a", "second": "#62a0e6", "third": "#e0a530", "hot": "#f0685d",
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


def curve(kind: str, points: Sequence[tuple[float, float]], title: str) -> str:
    """Returns a line through points of the drawing; a single point is a dot."""
    shown = points if len(points) > 1 else [*points, *points]
    return (
        f'<polyline class="{kind}" stroke-linecap="round" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in shown)}">'
        f"<title>{clean(title)}</title></polyline>"
    )


def document(name: str, title: str, description: str, style: str, parts: Iterable[str], height: float) -> str:
    """Returns an SVG document without an XML declaration, so that HTML can hold it.

    Args:
        name: Prefix of the ids, which are unique in a page with several drawings.
        title: Name of the drawing.
        description: The drawing in words.
        style: The CSS of its classes.
        parts: Its shapes, within WIDTH and `height`.
        height: In pixels.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="100%" role="img" '
        f'aria-labelledby="{name}title {name}desc"><title id="{name}title">{clean(title)}</title>'
        f'<desc id="{name}desc">{clean(description)}</desc><style>{style}</style>'
    )
    return "\n".join([head, f'<rect class="back" width="{WIDTH:.0f}" height="{height:.0f}"/>', *parts, "</svg>"])


def html(title: str, body: Iterable[str]) -> str:
    """Returns a page that needs nothing from elsewhere."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{clean(title)}</title><style>{page_style()}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def page_style() -> str:
    """Returns the style of a page around a drawing, light and dark."""

    def colours(theme: dict[str, str]) -> str:
        return (
            f"body{{background:{theme['back']};color:{theme['text']}}}pre{{border-left:3px solid {theme['line']}}}"
            f"td,th{{border-bottom:1px solid {theme['line']}}}.verdict{{border-left:4px solid {theme['first']}}}"
        )

    return (
        "body{font:15px/1.45 system-ui,sans-serif;margin:0}main{max-width:1040px;margin:0 auto;padding:16px}"
        "svg{max-width:100%;height:auto}pre{overflow-x:auto;padding-left:12px;font-size:13px}"
        "table{border-collapse:collapse}td,th{padding:3px 14px 3px 0;text-align:right;font-weight:400}"
        "td:first-child,th:first-child{text-align:left}th{font-weight:600}.verdict{padding:1px 14px}"
        f"{colours(LIGHT)}@media (prefers-color-scheme:dark){{{colours(DARK)}}}"
    )
