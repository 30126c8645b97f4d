"""live.html: the live page of a finished run, one file that shows any of its times and needs no server.

It is made from live.jsonl, in which the page's server records what it sends: a line is a JSON object with `kind` and
`data`.
"""

import re
from pathlib import Path
from typing import Final

from railyard.core.safe_files import Folder
from railyard.results.runs.records import LIVE_PAGE

RECORD: Final = "live.jsonl"
PAGE: Final = LIVE_PAGE
STATIC: Final = Path(__file__).parent / "static"
MAX_BYTES: Final = 64 << 20  # of a record that a browser is given; later lines are left out
_MODULES: Final = ("words", "fabric", "panel", "strips", "main")  # each after those that it imports
_EXPORT: Final = re.compile(r"^export (class|function) (\w+)", re.MULTILINE)
_IMPORT: Final = re.compile(r'^import (\{.*\}) from "\./(\w+)\.js";$', re.MULTILINE)


def write_page(folder: Folder) -> bool:
    """Write live.html if the folder has a record; return whether it has one."""
    record = folder.read(RECORD, MAX_BYTES)
    if record is None:
        return False
    folder.write(PAGE, page_of(record).encode())
    return True


def page_of(record: bytes) -> str:
    """Return the page as one HTML document. A last line without its end, of a run that was killed, is left out."""
    lines = record[: record.rfind(b"\n") + 1].decode(errors="replace").splitlines()
    # a name with "<" could end the script, or hide its end (<!--)
    data = f"[{','.join(lines)}]".replace("<", "\\u003c")
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    for name in ("uplot", "page"):
        style = f"<style>{(STATIC / f'{name}.css').read_text(encoding='utf-8')}</style>"
        text = text.replace(f'<link rel="stylesheet" href="static/{name}.css">', style)
    text = text.replace('<script src="static/uplot.js" defer></script>\n', "")
    text = text.replace('<script src="static/main.js" type="module"></script>\n', "")
    scripts = f"<script>{(STATIC / 'uplot.js').read_text(encoding='utf-8')}</script>\n<script>{bundle()}</script>\n"
    return text.replace("</body>", f'<script id="record" type="application/json">{data}</script>\n{scripts}</body>')


def bundle() -> str:
    """Return the page's modules as one script: browsers load no modules from files."""
    parts = list[str]()
    for name in _MODULES:
        source = (STATIC / f"{name}.js").read_text(encoding="utf-8")
        exported = ", ".join(match[2] for match in _EXPORT.finditer(source))
        body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(r"const \1 = \2_module;", source))
        parts.append(f"const {name}_module = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n")
    return "".join(parts)
