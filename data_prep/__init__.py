"""Makes click logs: from public formats, from a user's tables, or generated."""

# name -> module; each module has `main(argv: list[str]) -> int`
SOURCES: dict[str, str] = {
    "avazu": "data_prep.avazu",
    "criteo": "data_prep.criteo",
    "csv": "data_prep.table",
    "libsvm": "data_prep.libsvm",
    "movielens": "data_prep.movielens",
    "parquet": "data_prep.table",
    "synthetic": "data_prep.synthetic",
}
# what each reads, in a line for `heterps prepare --help`
DESCRIPTIONS: dict[str, str] = {
    "avazu": "Avazu's click logs (train.gz)",
    "criteo": "Criteo's click logs, the Kaggle challenge and the 1 TB logs",
    "csv": "delimited text with a recipe that gives each column a role",
    "libsvm": "LABEL INDEX:VALUE … (svmlight, RankLib with qid)",
    "movielens": "MovieLens ratings, with what is known of users and films",
    "parquet": "Parquet files with a recipe that gives each column a role",
    "synthetic": "a generated click log",
}
