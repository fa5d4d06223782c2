"""Makes click logs: from public formats, from a user's tables, or from thin air."""

# name -> module; each module has `main(argv: list[str]) -> int`
SOURCES: dict[str, str] = {
    "avazu": "data_prep.avazu",
    "criteo": "data_prep.criteo",
    "csv": "data_prep.table",
    "movielens": "data_prep.movielens",
    "parquet": "data_prep.table",
    "synthetic": "data_prep.synthetic",
}
