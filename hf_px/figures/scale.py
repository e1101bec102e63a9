"""A scale: value -> coordinate, linear or logarithmic, with ticks at 1, 2 or 5 times a power of ten."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LARGEST, _SMALLEST = 1e300, 1e-300  # beyond these a difference or a power of ten may leave float64


@dataclass(frozen=True)
class ChartScale:
    """start + (end - start) (v - low) / (high - low); of log10 v, low and high if `log`. start may be above end."""

    low: float
    high: float
    start: float = 0.0
    end: float = 1.0
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, v = (math.log10(a) if self.log else a for a in (self.low, self.high, value))
        return self.start + (self.end - self.start) * ((v - low) / (high - low))

    def between(self, start: float, end: float) -> ChartScale:
        return replace(self, start=start, end=end)

    def can_draw(self, value: float | None) -> bool:
        return is_drawable(value, self.log)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """At most `most` pairs (value, label), in increasing order."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last > first:
                every = math.ceil((last - first + 1) / most)
                powers = [p for p in range(first, last + 1) if p % every == 0]
                in_digits = powers[0] >= -3 and powers[-1] <= 4
                return [(10.0**p, _power_label(p, in_digits)) for p in powers]
        return _linear_ticks(self.low, self.high, most)


def is_drawable(value: float | None, log: bool = False) -> bool:
    """Finite, not near the limits of float64, and positive if the scale is logarithmic."""
    if value is None or not math.isfinite(value) or abs(value) > _LARGEST:
        return False
    return value >= _SMALLEST or not log


def scale_around(
    values: Iterable[float | None], *, log: bool = False, zero: bool = False, room: float = 0.03
) -> ChartScale:
    """A scale over all values with some room at both ends.

    With `zero` the scale includes zero and has no room beyond it.
    """
    found = [value for value in values if value is not None and is_drawable(value, log)]
    if not found:
        return ChartScale(1.0, 10.0, log=True) if log else ChartScale(0.0, 1.0)
    low, high = min(found), max(found)
    if log:
        low, high = math.log10(low), math.log10(high)
        spread = (high - low) * room if high - low > 1e-6 else 0.5
        return ChartScale(10 ** max(low - spread, -304), 10 ** min(high + spread, 304), log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-6 * max(abs(low), abs(high), _SMALLEST):  # all values are about the same
        spread = 0.5 * max(abs(low), abs(high)) or 1.0
        return ChartScale(low if zero else low - spread, high + spread)
    spread = (high - low) * room
    return ChartScale(low if zero and low == 0 else low - spread, high if zero and high == 0 else high + spread)


def _power_label(p: int, in_digits: bool) -> str:
    """10 to the p, as 0.01 or 1,000 or else as 10⁻⁸."""
    if not in_digits:
        return f"10{str(p).translate(_SUPERSCRIPT)}"
    return f"{10**p:,}" if p >= 0 else f"{10.0**p:.{-p}f}"


def _linear_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Multiples of the smallest step (1, 2 or 5 times a power of ten) that gives at most `most` ticks."""
    exponent = math.floor(math.log10((high - low) / most))
    steps = ((m, e) for e in (exponent, exponent + 1) for m in (1, 2, 5))
    for m, e in steps:
        step = m * 10.0**e
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [(k * step, _label(k, m, e, max(abs(low), abs(high)))) for k in range(first, last + 1)]
    raise AssertionError((low, high, most))


def _label(k: int, m: int, e: int, largest: float) -> str:
    value = k * m  # an integer; the label is value times 10^e, so no digit is a rounding error
    if value == 0:
        return "0"
    if e >= -4 and largest < 1e6:
        return f"{value * 10.0**e:,.{max(0, -e)}f}".replace("-", "−")
    power = len(str(abs(value))) - 1
    digits = f"{value / 10**power:.{power}f}".rstrip("0").rstrip(".") if power else str(value)
    return f"{digits}e{power + e}".replace("-", "−")
