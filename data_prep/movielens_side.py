"""MovieLens' side tables: what is known of users and items in addition to their ratings."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.hashing import keys_of_texts, missing_key
from data_prep.source import Int64s
from heterps_hpc.dataset import Keys, offsets_of
from heterps_hpc.errors import UserError

# u.genre of MovieLens 100K, in the order of the flags in u.item
_GENRES = [
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
]


@dataclass(frozen=True)
class SideTable:
    """For each id (sorted), the keys of its features; what is not listed is missing."""

    ids: Int64s
    features: dict[str, Keys]

    def look_up(self, ids: Int64s) -> dict[str, Keys]:
        """The features of the given ids."""
        places = np.searchsorted(self.ids, ids)
        places = np.where(places < len(self.ids), places, 0)
        unknown = self.ids[places] != ids
        # the last entry of every feature stands for an id without an entry
        places[unknown] = len(self.ids)
        return {name: keys.pick(places) for name, keys in self.features.items()}


def side_table(texts: dict[int, dict[str, list[str]]], many: tuple[str, ...]) -> SideTable:
    """From each id's features as texts."""
    ids = np.array(sorted(texts), np.int64)
    names = list(next(iter(texts.values())))
    features = {}
    for name in names:
        words = [texts[int(number)][name] for number in ids]
        flat = [word.encode() for group in words for word in group]
        keys = keys_of_texts(name, flat)
        if name in many:
            features[name] = Keys(keys, offsets_of(np.array([len(w) for w in words] + [0])))
        else:
            features[name] = Keys(np.append(keys, np.uint64(missing_key(name))))
    return SideTable(ids, features)


def read_users(directory: Path) -> SideTable | None:
    """users.dat (1M) or u.user (100K); later releases have none."""
    for name, delimiter, order in (
        ("users.dat", "::", ("gender", "age", "occupation", "zip")),
        ("u.user", "|", ("age", "gender", "occupation", "zip")),
    ):
        path = directory / name
        if path.exists():
            texts = {
                int(fields[0]): {
                    feature: [field] for feature, field in zip(order, fields[1:], strict=True)
                }
                for fields in _records(path, delimiter, 5)
            }
            return side_table(texts, ()) if texts else None
    return None


def read_items(directory: Path) -> SideTable | None:
    """movies.dat (1M, 10M), movies.csv (later) or u.item (100K)."""
    texts: dict[int, dict[str, list[str]]] = {}
    if (directory / "movies.dat").exists():
        for fields in _records(directory / "movies.dat", "::", 3):
            texts[int(fields[0])] = {"genres": _genres(fields[2])}
    elif (directory / "movies.csv").exists():
        with (directory / "movies.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                texts[int(row["movieId"])] = {"genres": _genres(row["genres"])}
    elif (directory / "u.item").exists():
        for fields in _records(directory / "u.item", "|", 5 + len(_GENRES)):
            flags = fields[-len(_GENRES) :]
            chosen = [genre for genre, flag in zip(_GENRES, flags, strict=True) if flag == "1"]
            texts[int(fields[0])] = {"genres": chosen}
    return side_table(texts, ("genres",)) if texts else None


def _genres(text: str) -> list[str]:
    return [] if text == "(no genres listed)" else [word for word in text.split("|") if word]


def _records(path: Path, delimiter: str, num_fields: int) -> Iterator[list[str]]:
    """Records of the older releases, whose titles are Latin-1."""
    with path.open(encoding="latin-1") as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\r\n").split(delimiter)
            if len(fields) != num_fields or not fields[0].isdigit():
                raise UserError(
                    f"{path}, line {number}: expected {num_fields} fields separated by "
                    f"{delimiter!r}, the first an id; got {line[:80]!r}"
                )
            yield fields
