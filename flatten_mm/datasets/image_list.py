"""Annotation files of classification: a line an image, its path and its class number."""

from __future__ import annotations

from pathlib import Path

from .problems import ERROR, WARNING, Problem


def list_problems(ann_file: str, num_classes: int | None = None) -> list[Problem]:
    """What mmpretrain would crash on or learn wrongly in a list of "path label" lines.

    Args:
        ann_file: The list, where lines are "path label".
        num_classes: Labels are 0 to ``num_classes`` - 1; None where that is not known.
    """
    problems: list[Problem] = []
    seen: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(_lines(ann_file), start=1):
        where = f'line {number}'
        parts = line.strip().rsplit(' ', 1)
        if len(parts) != 2 or not parts[1].isdecimal():
            problems.append(Problem(ERROR, 'list-line', ann_file,
                                    f'is {line.strip()[:80]!r}; expected "path label", the label a '
                                    'class number', where))
            continue
        path, label = parts
        if num_classes is not None and int(label) >= num_classes:
            problems.append(Problem(ERROR, 'label-beyond', ann_file,
                                    f'has label {label}, but the {num_classes} classes are 0 to '
                                    f'{num_classes - 1}', where))
        if path in seen:
            first, other = seen[path]
            level = ERROR if other != label else WARNING
            problems.append(Problem(level, 'image-listed-twice', ann_file,
                                    f'lists {path} with label {label}, which line {first} lists '
                                    f'with label {other}', where))
        else:
            seen[path] = number, label
    return problems


def _lines(ann_file: str) -> list[str]:
    return Path(ann_file).read_text(encoding='utf-8', errors='replace').splitlines()
