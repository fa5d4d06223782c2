"""Makes click logs: from public formats, from a user's tables, or from thin air."""

# name -> module; each module has `main(argv: list[str]) -> int`
SOURCES: dict[str, str] = {
    "synthetic": "data_prep.synthetic",
}
