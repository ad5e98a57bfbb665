import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search_spaces import Categorical, Float, Int, Role, SettingError

UNIT = st.floats(0, 1)
FINITE = st.floats(-1e300, 1e300)
POSITIVE = st.floats(1e-12, 1e12)


@st.composite
def floats(draw: st.DrawFn) -> Float:
    log = draw(st.booleans())
    low, high = sorted(
        draw(st.lists(POSITIVE if log else FINITE, min_size=2, max_size=2, unique=True))
    )
    assume(not log or math.log(low) < math.log(high))
    return Float(low, high, log=log)


@st.composite
def ints(draw: st.DrawFn) -> Int:
    log = draw(st.booleans())
    low = draw(st.integers(1 if log else -(10**6), 10**6))
    return Int(low, low + draw(st.integers(1, 10**6)), log=log)


CHOICES = st.lists(
    st.one_of(st.none(), st.booleans(), st.integers(2, 99), st.text(max_size=5)),
    min_size=2,
    unique=True,
).map(lambda values: Categorical(tuple(values)))


@given(domain=floats(), unit=UNIT)
def test_float_round_trip_through_the_unit_interval(domain: Float, unit: float) -> None:
    value = domain.from_unit(unit)
    assert domain.contains(value)
    again = domain.from_unit(domain.to_unit(value))
    scale = abs(value) if domain.log else max(abs(domain.low), abs(domain.high))
    assert again == pytest.approx(value, rel=1e-9, abs=1e-9 * scale)


def test_the_smallest_range_of_floats_has_two_places() -> None:
    domain = Float(0.0, math.nextafter(0.0, 1.0))
    assert (domain.to_unit(domain.low), domain.to_unit(domain.high)) == (0.0, 1.0)


@given(domain=floats(), units=st.lists(UNIT, min_size=2, max_size=2).map(sorted))
def test_float_is_monotone_and_reaches_its_ends(domain: Float, units: list[float]) -> None:
    first, second = (domain.from_unit(unit) for unit in units)
    slack = 1e-12 * max(abs(domain.low), abs(domain.high))
    assert first <= second + slack
    assert (domain.from_unit(0.0), domain.from_unit(1.0)) == (domain.low, domain.high) or domain.log
    assert (domain.to_unit(domain.low), domain.to_unit(domain.high)) == (0.0, 1.0)


@given(domain=ints(), data=st.data())
def test_int_round_trip_is_exact(domain: Int, data: st.DataObject) -> None:
    value = data.draw(st.integers(domain.low, domain.high))
    assert domain.from_unit(domain.to_unit(value)) == value
    assert domain.contains(domain.from_unit(data.draw(UNIT)))


@given(domain=CHOICES, data=st.data())
def test_choice_round_trip_is_exact(domain: Categorical, data: st.DataObject) -> None:
    value = data.draw(st.sampled_from(domain.values))
    assert domain.from_unit(domain.to_unit(value)) is value
    assert domain.contains(domain.from_unit(data.draw(UNIT)))


def test_known_places() -> None:
    assert Float(0.01, 1.0, log=True).to_unit(0.1) == pytest.approx(0.5)
    assert Float(0, 5).from_unit(0.5) == 2.5
    # 1..4 on a line: cells of a quarter each
    assert [Int(1, 4).from_unit(unit) for unit in (0, 0.24, 0.26, 0.51, 0.76, 1)] == [
        1,
        1,
        2,
        3,
        4,
        4,
    ]
    # in the logarithm the cell of n is log((n + 1/2) / (n - 1/2)): that of 1 is log 3 / log 5 of [1/2, 5/2]
    edge = math.log(3) / math.log(5)
    domain = Int(1, 2, log=True)
    assert (domain.from_unit(edge - 1e-9), domain.from_unit(edge + 1e-9)) == (1, 2)
    assert Categorical(("a", "b")).to_unit("b") == 0.75


def test_uniform_numbers_visit_every_whole_number_evenly() -> None:
    counts = dict.fromkeys(range(3, 8), 0)
    for step in range(5000):
        counts[Int(3, 7).from_unit((step + 0.5) / 5000)] += 1
    assert set(counts.values()) == {1000}


def test_clip_gives_the_nearest_value() -> None:
    assert (Float(1, 2).clip(9), Float(1, 2).clip(-9), Float(1, 2).clip(1.5)) == (2.0, 1.0, 1.5)
    assert (Int(1, 8).clip(3.6), Int(1, 8).clip(99)) == (4, 8)
    assert Categorical((8, 16, 32)).clip(20) == 16
    assert Categorical(("sgd", "lars")).clip("lars") == "lars"
    with pytest.raises(SettingError, match="must lie in"):
        Categorical(("sgd", "lars")).clip("adam")


def test_truth_is_not_one() -> None:
    assert not Categorical((1, 0)).contains(True)
    assert not Int(0, 1).contains(True)
    assert not Float(0, 1).contains(True)
    assert Categorical((True, 1)).to_unit(1) == 0.75


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        (Float(0.01, 1.28, log=True), FloatDistribution(0.01, 1.28, log=True)),
        (Float(0, 5), FloatDistribution(0, 5)),
        (Int(1, 64, log=True), IntDistribution(1, 64, log=True)),
        (Categorical(("sgd", "lars")), CategoricalDistribution(("sgd", "lars"))),
    ],
)
def test_optuna_has_the_same_domain(domain: Float | Int | Categorical, expected: object) -> None:
    assert domain.to_optuna() == expected


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Float(2, 1), "`low < high` must hold, but got low 2.0 and high 1.0"),
        (lambda: Float(1, 1), "`low < high` must hold"),
        (lambda: Float(0, 1, log=True), "must start above 0, but got low 0.0"),
        (
            lambda: Float(1e-12, math.nextafter(1e-12, 1), log=True),
            "low and high must differ in their logarithms",
        ),
        (lambda: Float(0, math.inf), "must be finite numbers, but got inf"),
        (lambda: Float(math.nan, 1), "must be finite numbers, but got nan"),
        (lambda: Float(False, 1), "must be finite numbers, but got False"),
        (lambda: Int(1.0, 4), "must be whole numbers, but got 1.0"),
        (lambda: Int(0, 4, log=True), "must start above 0"),
        (lambda: Categorical(("sgd",)), "at least two values"),
        (lambda: Categorical(("sgd", "sgd")), "each once"),
        (lambda: Categorical("sgd"), "must be a list"),
        (lambda: Categorical(((1, 2), (3, 4))), "must hold text, numbers, booleans or null"),
        (lambda: Categorical(("a", "b"), Role.SCALED), "a law can extrapolate"),
        (lambda: Float(0, 1, role=Role.FIXED), "write the single value"),
        (lambda: Float(0, 1, role="scaled"), "must be a Role"),
        (lambda: Float(0, 1).to_unit(1.5), "must lie in .0.0, 1.0., but got 1.5"),
        (lambda: Float(0, 1).from_unit(1.5), "`0 <= unit <= 1` must hold, but got 1.5"),
        (lambda: Int(0, 1).from_unit(math.nan), "`0 <= unit <= 1` must hold"),
    ],
)
def test_errors_name_the_rule_and_the_value(build: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build()  # type: ignore[operator]
