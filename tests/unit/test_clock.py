"""The clock: every micro-batch once forward and once backward, never too many in flight."""

import pytest

from heterps_hpc.runtime.clock import one_forward_one_backward


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("later", [0, 1, 2, 5])
def test_order_and_memory(micro_batches: int, later: int) -> None:
    in_flight, most = set(), 0
    forwards, backwards = [], []
    for tick, number in one_forward_one_backward(micro_batches, later):
        if tick == "forward":
            in_flight.add(number)
            forwards.append(number)
        else:
            in_flight.remove(number)  # a backward before its forward would raise
            backwards.append(number)
        most = max(most, len(in_flight))
    assert forwards == backwards == list(range(micro_batches))
    assert most == min(micro_batches, later + 1)


def test_the_timetable_in_the_comment() -> None:
    def line(later: int) -> str:
        ticks = one_forward_one_backward(4, later)
        return " ".join(f"{tick[0].upper()}{number}" for tick, number in ticks)

    assert line(2) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert line(0) == "F0 B0 F1 B1 F2 B2 F3 B3"


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_no_deadlock_between_stages(stages: int) -> None:
    """Run all stages' clocks together; a tick waits for its neighbours' messages."""
    clocks = [list(one_forward_one_backward(3, stages - 1 - i)) for i in range(stages)]
    done: set[tuple[int, str, int]] = set()
    places = [0] * stages
    for _ in range(1000):
        for stage in range(stages):
            if places[stage] == len(clocks[stage]):
                continue
            tick, number = clocks[stage][places[stage]]
            needs = (
                (stage - 1, "forward", number) if tick == "forward" else (stage + 1, tick, number)
            )
            if needs[0] in (-1, stages) or needs in done:
                done.add((stage, tick, number))
                places[stage] += 1
    assert places == [len(clock) for clock in clocks]
