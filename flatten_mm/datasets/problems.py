"""What is wrong with a data set, one entry a problem."""

from __future__ import annotations

from dataclasses import asdict, dataclass

ERROR, WARNING = 'error', 'warning'


@dataclass(frozen=True)
class Problem:
    """One thing wrong.

    Attributes:
        level: ``'error'``, where training refuses or would go wrong, or ``'warning'``.
        kind: A short name shared by problems alike, such as ``'rle-size'``.
        file: The file at fault.
        text: What is wrong with it; reads on after the file's name.
        where: Place in the file, such as ``'annotation 17'``; '' for all of it.
    """

    level: str
    kind: str
    file: str
    text: str
    where: str = ''

    def __str__(self) -> str:
        return f'{self.file}{", " + self.where if self.where else ""} {self.text}'

    def to_dict(self) -> dict:
        """For JSON."""
        return asdict(self)
