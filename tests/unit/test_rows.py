"""The one rule that cuts batches: every row exactly once, on whichever rank."""

from hypothesis import given
from hypothesis import strategies as st

from heterps_hpc.row_ranges import micro_batch_ranges, overlap, replica_ranges, split_rows


@given(st.integers(0, 500), st.integers(1, 20))
def test_parts_cover_all_rows_in_order_and_differ_by_one(num_rows: int, num_parts: int) -> None:
    parts = split_rows(num_rows, num_parts)
    assert [row for a, b in parts for row in range(a, b)] == list(range(num_rows))
    sizes = [b - a for a, b in parts]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 200), st.integers(1, 6), st.integers(1, 6))
def test_replicas_share_every_micro_batch(num_rows: int, micro: int, replicas: int) -> None:
    shares = [replica_ranges(num_rows, micro, replicas, replica) for replica in range(replicas)]
    for number, (first, last) in enumerate(micro_batch_ranges(num_rows, micro)):
        rows = [row for share in shares for row in range(*share[number])]
        assert rows == list(range(first, last))


@given(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted),
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted),
)
def test_overlap_is_the_intersection(left: list[int], right: list[int]) -> None:
    first, last = overlap((left[0], left[1]), (right[0], right[1]))
    assert set(range(first, last)) == set(range(*left)) & set(range(*right))
