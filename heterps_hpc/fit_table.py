"""Tables on narrow terminals: columns are left out before numbers or words are cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Column, Table

_MIN_TEXT = 14  # columns that folded text needs to be readable
_LONGEST_WORD = 20  # a longer one may be cut
_BETWEEN = 3  # columns between two cells


def fit_table(table: Table, width: int, optional: Sequence[str]) -> Table:
    """The table without as many of its optional columns, the first ones first, as must go."""
    for name in optional:
        if sum(_least(column) + _BETWEEN for column in table.columns) <= width:
            break
        table.columns = [column for column in table.columns if column.header != name]
    for index, column in enumerate(table.columns):
        column._index = index
    return table


def _least(column: Column) -> int:
    """Columns of the terminal that a column of the table needs."""
    texts = [str(column.header), *map(str, column.cells)]
    longest = max(len(line) for text in texts for line in text.splitlines() or [""])
    if column.no_wrap:
        return longest
    word = max((len(word) for text in texts for word in text.split()), default=0)
    return max(min(longest, _MIN_TEXT), min(word, _LONGEST_WORD))
