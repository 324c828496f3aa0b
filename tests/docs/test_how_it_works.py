"""What docs/how_it_works.md and docs/troubleshooting.md show is what the code does."""
from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / 'docs' / 'how_it_works.md').read_text(encoding='utf-8')
MESSAGES = re.findall(r'^error: (.*)$', (REPO / 'docs' / 'troubleshooting.md').read_text(
    encoding='utf-8'), re.M)


def test_the_python_example_runs(capsys):
    example, = (block for block in re.findall(r'```python\n(.*?)```', PAGE, re.S)
                if 'import torch' in block)
    names: dict = {}
    exec(example, names)
    assert names['rows']['block2.1.attn'].shape == (2, 2, 20 * 28)
    assert names['matrices']['block2.0.attn'].shape == (560, 560)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 8


@pytest.mark.parametrize('page', sorted((REPO / 'docs').glob('*.md')), ids=lambda path: path.name)
def test_pictures_are_there_and_small(page):
    for name in re.findall(r'!\[[^]]*\]\(([^)]+)\)', page.read_text(encoding='utf-8')):
        picture = page.parent / name
        assert picture.is_file() and picture.stat().st_size < 200_000, name


def patterns() -> list[re.Pattern]:
    """A pattern for each text in the source, anything standing for what is filled in."""
    found = []
    for file in (*(REPO / 'flatten_mm').rglob('*.py'), *(REPO / 'tools').rglob('*.py')):
        for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else None
                         for part in node.values]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [node.value]
            else:
                continue
            if sum(len(part or '') for part in parts) >= 25 and '\n' not in ''.join(
                    part or '' for part in parts):
                found.append(re.compile(''.join(
                    '.*' if part is None else re.escape(part) for part in parts)))
    return found


@pytest.fixture(scope='module')
def source():
    return patterns()


@pytest.mark.parametrize('message', MESSAGES, ids=lambda message: message[:40])
def test_messages_on_the_troubleshooting_page_are_in_the_source(message, source):
    assert any(pattern.search(message) for pattern in source)
