"""Write the tables of README.md and docs/: what stands between the markers is generated from results and tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.figures import Row, rows

ROOT = Path(__file__).parent.parent
ATTACKS = re.compile(r"(<!-- attacks -->\n).*?(<!-- end -->)", re.DOTALL)
BLOCK = re.compile(r"(<!-- figures: ([\w.* -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(selected: list[Row]) -> str:
    lines = ["| figure | value | target | from |", "|---|---|---|---|"]
    for row in selected:
        verdict = "" if row.met else " (missed)"
        lines.append(f"| `{row.name}` | {row.value:.3g} {row.unit} | {row.target}{verdict} | `{row.file}` |")
    return "\n".join(lines) + "\n"


def attack_table() -> str:
    """One line for each attack of the catalogue, by row, and the rows that no candidate on the CPU can express."""
    from tests.attacks.catalogue import ATTACKS, ELSEWHERE

    lines = ["| row | attack | the guard says | without the guard | stopped by |", "|---|---|---|---|---|"]
    for attack in sorted(ATTACKS, key=lambda attack: attack.rows or (99,)):
        rows = ", ".join(map(str, attack.rows)) or "ours"
        rule = f"`{attack.guard_rule}`" if attack.guard_rule else "nothing"
        outcomes = " or ".join(sorted(outcome.value for outcome in attack.outcomes))
        if outcomes == "PASSED" and not attack.guard_alone:
            outcomes = "PASSED, and nothing is gained"
        lines.append(f"| {rows} | {attack.name} | {rule} | {outcomes} | {attack.defence} |")
    lines += [f"| {row} | | | | {reason} |" for row, reason in ELSEWHERE.items()]
    return "\n".join(lines) + "\n"


def rewritten(text: str, found: list[Row]) -> str:
    def block(match: re.Match[str]) -> str:
        files = match[2].split()
        return match[1] + table([row for row in found if row.file in files or "all" in files]) + match[3]

    if ATTACKS.search(text):
        text = ATTACKS.sub(lambda match: match[1] + attack_table() + match[2], text)
    return BLOCK.sub(block, text)


def main() -> int:
    """Rewrite the tables; with --check only say whether they are up to date."""
    found, outdated = list(rows()), []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text()
        if (new := rewritten(text, found)) != text:
            outdated.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new)
    print(f"{'outdated' if '--check' in sys.argv else 'rewritten'}: {', '.join(outdated) or 'none'}")
    return 1 if outdated and "--check" in sys.argv else 0


if __name__ == "__main__":
    raise SystemExit(main())
