"""Reports in a notebook: HTML that takes its colours from the page, so that it reads in light and in dark.

Text and background are the page's own.  Lines and shades are translucent grey, and the colours of policies translucent
too, which is legible on either.  Everything that comes from a program is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from cuda_captures import report_words as words
from cuda_captures.report import Advice, CaptureReport, Row, Specialisation

STYLE = """\
<style>
.cuda-captures { font: 13px/1.45 system-ui, sans-serif; color: inherit; max-width: 75rem; overflow-x: auto; }
.cuda-captures .cc-head { font-size: 15px; margin: 0 0 .4em; }
.cuda-captures table { border-collapse: collapse; border: 0; margin: 0 0 .7em; width: auto; color: inherit; }
.cuda-captures tbody tr:nth-child(n), .cuda-captures.cuda-captures tbody tr:hover { background: transparent; }
.cuda-captures th, .cuda-captures td { text-align: left; vertical-align: top; padding: .4em .9em .4em .4em;
  border: 0; border-bottom: 1px solid rgba(128, 128, 128, .3); white-space: normal; font-size: 13px; }
.cuda-captures th { background: rgba(128, 128, 128, .14); font-weight: 600; white-space: nowrap; }
.cuda-captures code { font: 12px/1.45 ui-monospace, monospace; background: none; color: inherit; padding: 0; }
.cuda-captures .cc-name { font-weight: 700; font-size: 13px; }
.cuda-captures .cc-dim { opacity: .72; font-size: 12px; }
.cuda-captures .cc-tag { border-radius: .8em; padding: .05em .65em; background: rgba(128, 128, 128, .22);
  white-space: nowrap; }
.cuda-captures .cc-live { background: rgba(46, 160, 67, .3); }
.cuda-captures .cc-snapshot { background: rgba(30, 160, 190, .3); }
.cuda-captures .cc-mapped { background: rgba(170, 80, 200, .3); }
.cuda-captures .cc-constant { background: rgba(210, 160, 20, .34); }
.cuda-captures .cc-device { background: rgba(60, 120, 230, .3); }
.cuda-captures .cc-writes { background: rgba(230, 70, 60, .32); }
.cuda-captures .cc-advice { border-left: 4px solid rgba(210, 160, 20, .9); padding: .25em .7em; margin: .4em 0;
  background: rgba(210, 160, 20, .12); max-width: 60rem; }
</style>"""


def html(report: CaptureReport) -> str:
    """A report as a piece of HTML."""
    head = f"captures of kernel <b>{escape(report.kernel)}</b>"
    parts = [f'<p class="cc-head">{head} {dim(words.headline(report))}</p>']
    parts.append(captures(report.rows) if report.rows else f"<p>{escape(words.NO_CAPTURES)}</p>")
    if report.specialisations:
        parts.append(specialisations(report.specialisations))
        facts = [f"<b>constant memory</b> {escape(words.constant_memory(report))}"]
        if report.levels:
            facts.insert(0, f"<b>code looked for</b> {escape(' · '.join(map(words.level_line, report.levels)))}")
        parts.append(f'<p class="cc-dim">{"<br>".join(facts)}</p>')
    parts += map(advised, report.advice)
    return f'{STYLE}\n<div class="cuda-captures">\n' + "\n".join(parts) + "\n</div>"


def captures(rows: Iterable[Row]) -> str:
    """The captured arrays."""
    lines = []
    for row in rows:
        name = f'<code class="cc-name">{escape(row.name)}</code>'
        first, *rest = words.array_lines(row)
        copies = "".join(stacked(escape(lines[0]), lines[1:]) for lines in map(words.copy_lines, row.copies))
        named = stacked(name, [" → ".join(row.path), words.short_place(row.where)])
        lines.append(
            cells(
                f'<div title="{escape(row.where)}">{named}</div>',
                stacked(f"<code>{escape(first)}</code>", rest),
                tag(row.policy, row.policy),
                tag(words.access(row), words.access(row)),
                stacked(escape(words.edits(row)), [row.why]),
                copies or dim("none"),
            )
        )
    return table(["name", "array", "policy", "kernel", "host edits", "device copies"], lines)


def specialisations(found: Iterable[Specialisation]) -> str:
    """What a kernel was compiled to."""
    lines = [
        cells(
            f"<code>{escape(one.signature or 'none')}</code>",
            escape(words.SOURCES[one.source]),
            f'<code class="cc-dim" title="{escape(one.key or "")}">{escape((one.key or "none")[:10])}</code>',
            "<br>".join(map(prose, words.reasons(one))),
        )
        for one in found
    ]
    return table(["arguments", "code", "key", "why"], lines)


def table(columns: Iterable[str], lines: Iterable[str]) -> str:
    """A table of rows."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def cells(*contents: str) -> str:
    """One row, of pieces of HTML."""
    return f"<tr>{''.join(f'<td>{content}</td>' for content in contents)}</tr>"


def stacked(first: str, rest: Iterable[str]) -> str:
    """Lines of a cell: a piece of HTML, and texts in the background."""
    return f"<div>{first}{''.join(f'<br>{dim(text)}' for text in rest if text)}</div>"


def dim(text: str) -> str:
    """A text in the background."""
    return f'<span class="cc-dim">{prose(text)}</span>'


def prose(text: str) -> str:
    """A text whose words between backquotes are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def tag(text: str, kind: str) -> str:
    """A short word with a colour of its own."""
    return f'<span class="cc-tag cc-{escape(kind)}">{escape(text)}</span>' if text else ""


def advised(advice: Advice) -> str:
    """One piece of advice."""
    return f'<div class="cc-advice"><code class="cc-name">{escape(advice.name)}</code> {prose(advice.text)}</div>'
