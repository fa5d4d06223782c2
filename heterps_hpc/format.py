"""Numbers as people read them; every figure of a report passes through here once."""

from __future__ import annotations

import math
import time

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, never in scientific form above a millionth."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -6:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def money(dollars: float) -> str:
    """Dollars; cents from one dollar up, three significant digits below."""
    if abs(dollars) >= 1:
        return f"${dollars:,.2f}"
    if 0 < dollars < 1e-6:
        return "< $0.000001"
    return f"${significant(dollars)}"


def rate(samples_per_second: float) -> str:
    """Samples per second."""
    if samples_per_second >= 1000:
        return f"{samples_per_second:,.0f}"
    return significant(samples_per_second)


def money_at_least(dollars: float) -> str:
    """Dollars rounded down: a lower bound must not be printed above itself."""
    return money(_down(dollars, 0.01 if abs(dollars) >= 1 else _step(dollars)))


def rate_at_least(samples_per_second: float) -> str:
    """Samples per second rounded down: a floor of what is printed must still be reached."""
    step = 1.0 if samples_per_second >= 1000 else _step(samples_per_second)
    return rate(_down(samples_per_second, step))


def rate_at_most(samples_per_second: float) -> str:
    """Samples per second rounded up, as an upper bound."""
    step = 1.0 if samples_per_second >= 1000 else _step(samples_per_second)
    return rate(-_down(-samples_per_second, step))


def _down(value: float, step: float) -> float:
    """A multiple of the step that is no larger, but for rounding."""
    return math.floor(value / step + 1e-9) * step if math.isfinite(value) else value


def _step(value: float) -> float:
    """One of the last of three significant digits."""
    return 10.0 ** (math.floor(math.log10(abs(value))) - 2) if value else 1.0


def count(number: float) -> str:
    """A whole number with thousands set off."""
    return f"{number:,.0f}"


def seconds(value: float) -> str:
    """A duration, in the unit that suits it."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0 s"
    if value < 1e-3:
        return f"{significant(value * 1e6)} µs"
    if value < 1:
        return f"{significant(value * 1e3)} ms"
    if value < 120:
        return f"{significant(value)} s"
    minutes = round(value / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{count(hours)} h {minutes:02d} min"


def clock(value: float) -> str:
    """A duration that is shown while it changes, in whole seconds: 8 s, 2 min 05 s, 3 h 20 min."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{count(hours)} h {minutes:02d} min"


def day_and_time(seconds_since_epoch: float) -> str:
    """A moment, in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds_since_epoch))


def size(value: float) -> str:
    """Bytes, in powers of a thousand."""
    power = 0
    while abs(value) >= 1000 and power < len(_BYTES) - 1:
        value /= 1000
        power += 1
    return f"{significant(value)} {_BYTES[power]}"


def percent(fraction: float, digits: int = 1) -> str:
    """A share or a gap."""
    return f"{100 * fraction:.{digits}f} %"


def signed_percent(fraction: float) -> str:
    """A difference: +1.6 %, −3.0 %."""
    text = f"{100 * fraction:+.1f} %"
    return text.replace("-", "−")


def factor(ratio: float) -> str:
    """How many times: 1.3, 2.1, 44, 5,850."""
    return f"{ratio:.1f}" if ratio < 9.95 else count(ratio)


def more(fraction: float) -> str:
    """How much more: +1.6 %, −3.0 %, and from twice as much on 59 ×."""
    return f"{factor(1 + fraction)} ×" if fraction >= 1 else signed_percent(fraction)


def gap(fraction: float) -> str:
    """A distance from an optimum: 0.0 %, 20.0 %, and from twice as much on 59 ×."""
    return more(fraction) if fraction >= 1 else percent(fraction)


def gap_at_most(fraction: float) -> str:
    """The same rounded up: an upper bound must not be printed below itself."""
    step = 1e-3 if fraction < 1 else 0.1 if fraction < 8.9 else 1.0
    return gap(0.0 - _down(-fraction, step))  # -0.0 would be printed so


def shorten(text: str, limit: int) -> str:
    """A name that fits; the whole of it belongs into a tooltip."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def plural(number: int, word: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
