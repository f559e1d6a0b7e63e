"""Numbers, sizes and times for people: what every one of them keeps to, whatever the value."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from vlmconsole.text.numbers import UNKNOWN, change, decimal, figure, number, percent, signed, whole
from vlmconsole.text.sizes import GIB, KIB, MIB, signed_size, size, size_of
from vlmconsole.text.times import about, age, duration, latency
from vlmconsole.text.units import in_unit, of_total, spread

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)
POSITIVE = st.floats(min_value=1e-6, max_value=1e12)
ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))


def value_of(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


@given(ANYTHING)
def test_of_a_foreign_file_only_finite_numbers_count(value: object) -> None:
    found = number(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 1e300 or value != value:
        assert found is None and whole(value) is None and figure(value) == UNKNOWN and percent(value) == UNKNOWN
    else:
        assert found == float(value) and math.isfinite(found)
        assert whole(value) in (None, value)


@given(FINITE, st.integers(1, 6))
def test_a_figure_is_right_to_its_digits(value: float, digits: int) -> None:
    shown = value_of(figure(value, digits))
    assert math.isclose(shown, value, rel_tol=0.5 * 10 ** (1 - digits), abs_tol=1e-300)


@given(st.integers(-(10**14), 10**14))
def test_whole_numbers_are_written_in_full(value: int) -> None:
    for text in (figure(value), decimal(value)):
        assert value_of(text) == value
        assert ("," in text) == (abs(value) >= 10_000)


@given(st.integers(-(10**6), 10**6), st.integers(0, 5))
def test_a_decimal_has_no_digit_that_it_has_not(whole_part: int, places: int) -> None:
    value = whole_part / 10**places
    assert math.isclose(value_of(decimal(value)), value, rel_tol=1e-5)
    assert len(decimal(value).replace(",", "")) <= len(repr(value))


def test_figures_as_they_are_meant() -> None:
    assert [figure(x) for x in (0.25, 85.06, 3280.1, 12345.6, 1e-5, 0.99996, 999.6, 4096, 32768, -0.5)] == [
        "0.250", "85.1", "3280", "12,346", "1e-05", "1.00", "1000", "4096", "32,768", "-0.500",
    ]  # fmt: skip
    assert [decimal(x) for x in (0.25, 16.0, 1e-5, 12345.5, 1_000_000)] == [
        "0.25",
        "16",
        "1e-05",
        "12,345.5",
        "1,000,000",
    ]
    assert (percent(0.974), percent(0.974, 0), percent(0.974, unit="")) == ("97.4 %", "97 %", "97.4")


@given(FINITE, st.integers(0, 6))
def test_a_sign_is_written_unless_nothing_is_left_to_sign(value: float, places: int) -> None:
    text = signed(value, places)
    assert "-" not in text
    assert abs(value_of(text) - value) <= 0.5 * 10**-places * (1 + 1e-6) + abs(value) * 1e-12
    assert (text[0] in "+−") == (value_of(text) != 0)


def test_differences_as_they_are_meant() -> None:
    assert (signed(0.03125), signed(-0.03125), signed(-0.00001)) == ("+0.0312", "−0.0312", "0.0000")
    assert (change(0.125), change(-0.03)) == ("+12.5 %", "−3.0 %")


@given(st.integers(0, 2**60))
def test_a_size_is_right_to_three_digits_and_short(count: int) -> None:
    text, unit = size(count).split(" ")
    factor = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40}[unit]
    assert math.isclose(value_of(text) * factor, count, rel_tol=5e-3)
    assert unit == "TiB" or (value_of(text) < 1024 and len(text) <= 5)


def test_sizes_as_they_are_meant() -> None:
    assert [size(x) for x in (0, 812, 1023, 1024, 36 * KIB, 1023.9 * KIB, 433.2 * MIB, 1.234 * GIB, 31.9 * GIB)] == [
        "0 B", "812 B", "1023 B", "1 KiB", "36 KiB", "1 MiB", "433 MiB", "1.23 GiB", "31.9 GiB",
    ]  # fmt: skip
    assert (signed_size(-3 * KIB), signed_size(12.5 * MIB), signed_size(0)) == ("−3 KiB", "+12.5 MiB", "0 B")
    assert (size_of(21.3 * GIB, 31.9 * GIB), size_of(MIB, GIB)) == ("21.3 of 31.9 GiB", "1 MiB of 1 GiB")


@given(st.floats(min_value=0, max_value=1e9), st.floats(min_value=0, max_value=1e9))
def test_a_longer_time_is_never_written_as_a_shorter_one(one: float, other: float) -> None:
    factors = {"s": 1, "min": 60, "h": 3600, "d": 86400}

    def seconds(text: str) -> float:
        value, unit = text.split(" ")
        return float(value) * factors[unit]

    short, long = sorted((one, other))
    assert seconds(about(short)) <= seconds(about(long)) * 1.05 + 1e-9
    assert math.isclose(seconds(about(long)), long, rel_tol=0.35, abs_tol=1e-9)


def test_times_as_they_are_meant() -> None:
    assert [about(x) for x in (0, 7.5, 40, 119, 3600, 12600, 86400, 259200)] == [
        "0 s", "7.5 s", "40 s", "2 min", "60 min", "3.5 h", "24 h", "3 d",
    ]  # fmt: skip
    assert [age(x) for x in (None, 0.4, 61.2, 119, 1200)] == ["", "0 s", "61 s", "2 min", "20 min"]
    assert [duration(x) for x in (7, 723, 11100, 187200)] == ["0:07", "12:03", "3:05:00", "2 d 4 h"]
    assert [latency(x) for x in (None, 0, 0.00851, 0.43, 0.99996, 1.234, 75.3, 450)] == [
        UNKNOWN, "0 ms", "8.51 ms", "430 ms", "1.00 s", "1.23 s", "75.3 s", "450 s",
    ]  # fmt: skip


@given(st.floats(min_value=0, max_value=1e7), st.sampled_from(["s", "bytes", "share", "tok/s", ""]))
def test_a_figure_carries_its_unit_once(value: float, unit: str) -> None:
    text = in_unit(value, unit)
    assert text == text.strip() and "  " not in text
    assert text.count(" ") == (0 if unit == "" else 1)


@given(
    *[st.one_of(st.none(), st.floats(min_value=0, max_value=1e15))] * 3,
    st.sampled_from(["s", "bytes", "share", "tok/s", ""]),
    st.integers(16, 40),
)
def test_a_spread_fits_where_it_is_shown(
    value: float | None, p50: float | None, p95: float | None, unit: str, width: int
) -> None:
    text = spread(value, p50, p95, unit, width)[1]
    if None not in (p50, p95) and max(p50 or 0, p95 or 0) < 1e9:
        assert len(text) <= width


def test_of_a_total() -> None:
    assert (of_total(4, 8, ""), of_total(None, 8, ""), of_total(4, None, "tok/s")) == ("4 of 8", UNKNOWN, "4 tok/s")
