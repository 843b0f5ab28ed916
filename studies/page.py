"""Parts of a page that needs nothing else: its style, tables, and figures with their PNG and CSV."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dse.store import write_text
from studies.base import StudyFigure

DPI = 130
PAGE = "index.html"
CSS = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem;
  color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: 3px 10px; text-align: right; }
th { border-bottom: 2px solid #888; } td { border-bottom: 1px solid #eee; }
th:first-child, td:first-child { text-align: left; }
tr.bad td { background: repeating-linear-gradient(45deg, #fff, #fff 6px, #f3e6e6 6px, #f3e6e6 12px); }
figure { margin: 1rem 0 2rem; } figure img { max-width: 100%; } figcaption { font-size: 13px; color: #555; }
.wide { overflow-x: auto; } code { background: #f4f4f4; padding: 0 3px; }
"""


def save_figure(drawn: StudyFigure, folder: Path) -> None:
    """PNG and CSV of a figure in `folder`."""
    drawn.figure.savefig(folder / f"{drawn.name}.png", dpi=DPI, metadata={"Software": None})
    write_text(folder / f"{drawn.name}.csv", drawn.data.to_csv(index=False, lineterminator="\n"))


def _svg(figure: Figure) -> str:
    """The figure as an SVG image inside the page; no date in it, so equal figures are equal bytes."""
    text = io.BytesIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return base64.b64encode(text.getvalue()).decode()


def figure_section(question: str, drawn: StudyFigure) -> str:
    """Heading, question, the figure itself and links to its files."""
    alt = html.escape(drawn.title)
    return (
        f"<h2>{alt}</h2>\n<p>{html.escape(question)}</p>\n"
        f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{_svg(drawn.figure)}">'
        f"<figcaption>{html.escape(drawn.caption)} "
        f'Numbers: <a href="{drawn.name}.csv">{drawn.name}.csv</a>, image: '
        f'<a href="{drawn.name}.png">{drawn.name}.png</a>.</figcaption></figure>\n'
    )


def html_table(head: Sequence[str], rows: Sequence[tuple[bool, Sequence[str]]]) -> str:
    """A table; rows that are marked as bad are hatched."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr{' class=bad' if bad else ''}>"
        + "".join(f"<td>{html.escape(c)}</td>" for c in cells)
        + "</tr>\n"
        for bad, cells in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>\n{body}</table></div>'
