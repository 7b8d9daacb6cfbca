"""Every link leads somewhere, every page stands in the index, every page that code or a page names exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import HANG_S

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "README.md"
FOLDERS = ("start", "use", "operate", "internals")
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
SENTENCE_WORDS = 40
FIGURES = ("docs/operate/measurements.md", "docs/operate/performance.md")
"""Pages of figures: a sentence there is a row of numbers."""
NAMED = re.compile(r"(?<![\w/.-])docs/[\w/.-]*[\w]")
FOREIGN = ("tests/golden/", "tests/fuzz/corpus/")
"""Bytes of other programs: a path in them is none of ours."""


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    ).stdout
    return [ROOT / name for name in listed.splitlines() if not name.startswith(FOREIGN) and (ROOT / name).is_file()]


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
        found.add(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    return found


def broken_links(page: Path) -> list[str]:
    """Relative links of `page` to a file or a heading that does not exist."""
    found = []
    for target in LINK.findall(page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists() or (anchor and anchor not in anchors(goal.read_text())):
            found.append(target)
    return found


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# The `a` command\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#the-a-command) [b](none.md) [c](other.md#no-heading) [d](#here) [e](https://x.org)\n# Here"
    )
    assert broken_links(page) == ["none.md", "other.md#no-heading"]


def test_every_page_stands_in_the_index() -> None:
    index = INDEX.read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for name in FOLDERS for path in tracked(f"docs/{name}/*.md")]
    assert len(pages) > 25
    assert [page for page in pages if f"]({page})" not in index and not page.startswith("internals/adr/")] == []


def test_docs_holds_the_four_folders_the_index_and_pictures() -> None:
    entries = {path.relative_to(ROOT / "docs").parts[0] for path in tracked("docs")}
    assert entries == {*FOLDERS, "README.md", "images"}


def test_every_page_that_code_or_a_page_names_exists() -> None:
    """Messages of the program send readers to pages by their path in the repository."""
    missing = []
    for path in tracked("*.py", "*.md", "*.toml", "*.conf", "Makefile", ".ci/run"):
        for name in NAMED.findall(path.read_text()):
            if not (ROOT / name).exists():
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


def long_sentences(text: str) -> list[str]:
    """Sentences of a page's prose that nobody takes in at first read; tables, code and lists of names are none."""
    prose = re.sub(r"^```.*?^```|^ *\|.*?$|^#.*?$", "\n", text, flags=re.M | re.S)
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose):
        for sentence in re.split(r"(?<=[.!?:])\)?\s+(?=[A-Z0-9`*(\[])", " ".join(paragraph.split())):
            words = sentence.split()
            if len(words) > SENTENCE_WORDS and max(map(len, re.split(r"[,;:(]", sentence))) > 40:
                found.append(" ".join(words[:8]))
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_sentences_are_short(folder: str) -> None:
    pages = [page for page in tracked(f"docs/{folder}/*.md") if str(page.relative_to(ROOT)) not in FIGURES]
    assert len(pages) > 2
    assert [f"{page.name}: {start} …" for page in pages for start in long_sentences(page.read_text())] == []


def test_a_long_sentence_is_seen() -> None:
    long = "This goes on " + "and on with many words that follow each other " * 8
    assert len(long_sentences(f"Short.\n\n- {long}.\n- Short.\n")) == 1
    assert long_sentences(f"Short. {long[:200]}. {long[:200]}.\n\n| {long} |\n\n```\n{long}\n```\n") == []
