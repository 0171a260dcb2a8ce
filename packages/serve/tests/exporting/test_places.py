# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Results that depend on a row's place or the size of the batch are refused, roundings are not."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve import Platform
from dovetail_serve.exporting.places import check_places
from dovetail_serve.exporting.runner import Runner

ROWS, WIDTH, CLASSES = 5, 37, 6
GENERATOR = np.random.default_rng(0)
EXAMPLE = {
    "x": GENERATOR.normal(size=(ROWS, WIDTH)).astype("float32"),
    "ids": GENERATOR.integers(0, WIDTH, (ROWS, 4), dtype="int32"),
    "seed": np.arange(ROWS, dtype="uint32"),
}
WEIGHTS = {
    "w": GENERATOR.normal(size=(WIDTH, CLASSES)).astype("float32"),
    "experts": GENERATOR.normal(size=(CLASSES, WIDTH, CLASSES)).astype("float32"),
}


def checked(fn, names=("x",), batch_sizes=(1, 2, 7), any_size=False):
    """Checks a function of the weights and the named inputs."""
    run = Runner(
        lambda weights, arrays: {"y": fn(weights, **arrays)}, WEIGHTS, [Platform(name="cpu")]
    )
    example = {name: EXAMPLE[name] for name in names}
    check_places(run, example, batch_sizes=batch_sizes, any_size=any_size)


def place(x):
    return jnp.arange(len(x))


def noise(w, x):
    return x + jax.random.normal(jax.random.key(0), x.shape)


PLACES = {
    "a sum with the place": (lambda w, x: x + place(x)[:, None], ["x"]),
    "noise of one key": (noise, ["x"]),
    "classes drawn by one key": (
        lambda w, x: jax.random.categorical(jax.random.key(0), x[:, :4]),
        ["x"],
    ),
    "integers and the place": (lambda w, ids: ids + place(ids)[:, None], ["ids"]),
    "the first row": (lambda w, ids: ids.at[0].add(1), ["ids"]),
    "every second row": (lambda w, x: (x.T * (1 + 0.01 * (place(x) % 2))).T, ["x"]),
    "bfloat16": (lambda w, x: x.astype("bfloat16") + place(x)[:, None], ["x"]),
    "ids beside noise": (lambda w, ids: noise(w, w["w"][ids]), ["ids"]),
    "a flag": (lambda w, x: (x[:, 0] > 0) ^ (place(x) == 1), ["x"]),
}
SIZES = {
    "a product": (lambda w, x: x * len(x), ["x"]),
    "a quotient": (lambda w, x: x / (1 + len(x)), ["x"]),
    "integers": (lambda w, ids: ids + len(ids), ["ids"]),
    "one part in a thousand": (lambda w, x: x * (1 + 1e-3 * len(x)), ["x"]),
}


def half(w, x):
    """A layer in bfloat16 between float32."""
    return (x.astype("bfloat16") @ w["w"].astype("bfloat16")).astype("float32")


def int8(w, x):
    scale = jnp.abs(x).max(1, keepdims=True) / 127
    return jnp.round(x / scale).astype("int8").astype("float32") @ w["w"] * scale


def expert(w, x):
    """The best expert of each row, chosen in bfloat16."""
    choice = half(w, x).argmax(-1)
    return jnp.einsum("bi,bio->bo", x, w["experts"][choice])


INDEPENDENT = {
    "float32": (lambda w, x: jnp.tanh(x @ w["w"]) @ w["w"].T, ["x"]),
    "bfloat16 inside": (half, ["x"]),
    "float16": (lambda w, x: x.astype("float16") @ w["w"].astype("float16"), ["x"]),
    "float8": (lambda w, x: x.astype("float8_e4m3fn"), ["x"]),
    "int8 with a scale for each row": (int8, ["x"]),
    "the best class": (lambda w, x: half(w, x).argmax(-1), ["x"]),
    "the best three": (lambda w, x: jax.lax.top_k(half(w, x), 3)[1], ["x"]),
    "experts": (expert, ["x"]),
    "lookups": (lambda w, ids: w["w"][ids].sum(1), ["ids"]),
    "integers": (lambda w, ids: ids.sum(1), ["ids"]),
    "not a number": (lambda w, x: jnp.log(x), ["x"]),
    "a key for each row": (
        lambda w, x, seed: jax.vmap(noise)(jax.vmap(jax.random.key)(seed), x),
        ["x", "seed"],
    ),
    "masked": (lambda w, x: jnp.where(x > 1, -1e9, x), ["x"]),
}


@pytest.mark.parametrize("cause", PLACES)
def test_results_that_depend_on_the_place_are_refused(cause):
    with pytest.raises(
        ValueError,
        match=r"must not depend on its place .* difference of .* in the output 'y' between places "
        r"of a batch of 2; take .*write batch_sizes=\(1,\)",
    ):
        checked(*PLACES[cause])


@pytest.mark.thorough
@pytest.mark.parametrize("cause", SIZES)
def test_results_that_depend_on_the_size_are_refused(cause):
    with pytest.raises(
        ValueError,
        match=r"must not depend on the number of rows .* difference of .* in the output 'y' "
        r"between batches of 1 and of 2; compute without .*write batch_sizes=\(1,\)",
    ):
        checked(*SIZES[cause])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", INDEPENDENT)
def test_other_functions_are_accepted(kind):
    checked(*INDEPENDENT[kind], any_size=True)


@pytest.mark.thorough
def test_each_place_is_tried():
    for last in range(7):
        with pytest.raises(ValueError, match="batch of 7"):
            checked(lambda w, ids, last=last: ids.at[last].add(1), ["ids"], batch_sizes=(7,))


@pytest.mark.thorough
def test_a_program_for_any_number_of_rows_is_a_second_size():
    checked(SIZES["a product"][0], batch_sizes=(7,))
    with pytest.raises(ValueError, match="between batches of 7 and of 8"):
        checked(SIZES["a product"][0], batch_sizes=(7,), any_size=True)


def test_one_row_at_a_time_has_one_place_and_size():
    checked(noise, batch_sizes=(1,))


def test_inputs_without_a_batch_axis_are_not_tried():
    check_places(
        Runner(lambda weights, arrays: arrays, {}, []),
        {"x": np.asarray(1.0, "float32")},
        batch_sizes=(),
        any_size=False,
    )


def wobble(x, relative):
    """Rounding errors that depend on the place, as those of a compiler do."""
    return 1 + relative * (place(x) % 2)


class Unmoved(Runner):
    """A runner whose results need no explanation by rounding errors."""

    def nudged(self, *, seed):
        raise AssertionError("nudged")


@pytest.mark.thorough
@pytest.mark.parametrize(("layer", "passes"), [(half, True), (lambda w, x: x @ w["w"], False)])
def test_rounding_counts_at_the_coarsest_precision(layer, passes):
    # 1e-3 is an eighth of an epsilon of bfloat16, and 8,000 of float32.
    def flow(w, arrays):
        return {"y": layer(w, arrays["x"]) * wobble(arrays["x"], 1e-3)[:, None]}

    def check(kind):
        run = kind(flow, WEIGHTS, [Platform(name="cpu")])
        check_places(run, {"x": EXAMPLE["x"]}, batch_sizes=(1, 7), any_size=False)

    if passes:
        check(Unmoved)
        return
    with pytest.raises(ValueError, match="place"):
        check(Runner)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("factor", "relative", "refused"),
    [(1.0, 1e-7, False), (1.05, 0.1, True)],
    ids=["equal products", "unequal products"],
)
def test_ties_may_fall_to_either_side(factor, relative, refused):
    """Which product is larger: rounding decides between equal ones, the place between others."""
    kernel = WEIGHTS["w"][:, 0]

    def flow(w, arrays):
        x = arrays["x"]
        return {"y": x @ w["a"] * wobble(x, relative) > x @ w["b"]}

    run = Runner(flow, {"a": kernel, "b": kernel * np.float32(factor)}, [Platform(name="cpu")])
    example = {"x": EXAMPLE["x"]}
    if not refused:
        check_places(run, example, batch_sizes=(8,), any_size=False)
        return
    with pytest.raises(ValueError, match="place"):
        check_places(run, example, batch_sizes=(8,), any_size=False)


def check_flow(flow, weights, example, kind=Runner, batch_sizes=(8,)):
    run = kind(flow, weights, [Platform(name="cpu")])
    check_places(run, example, batch_sizes=batch_sizes, any_size=False)
    return run


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float8_e8m0fnu", "float8_e5m2", "float8_e4m3fn", "bfloat16"])
def test_a_coarse_weight_does_not_excuse_float32(dtype):
    """It is transposed, which rounds nothing. The place counts for 1 %, less than its epsilon."""

    def flow(w, arrays):
        return {"y": arrays["x"] @ w["w"].T.astype("float32") * wobble(arrays["x"], 0.01)[:, None]}

    kernel = np.asarray(jnp.asarray(np.abs(WEIGHTS["w"].T)).astype(dtype))
    with pytest.raises(ValueError, match="place"):
        check_flow(flow, {"w": kernel}, {"x": np.abs(EXAMPLE["x"])})


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["inside", "output"])
def test_results_of_8_bits_are_not_compared_within_a_quarter(where):
    def flow(w, arrays):
        x = arrays["x"]
        y = x.astype("float8_e4m3fn").astype("float32") @ w["w"] * wobble(x, 0.2)[:, None]
        return {"y": y if where == "inside" else y.astype("float8_e4m3fn")}

    with pytest.raises(ValueError, match="place"):
        check_flow(flow, WEIGHTS, {"x": EXAMPLE["x"]})


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_ties_of_sums_with_weights_of_8_bits_fall_to_either_side(dtype):
    """The weights stay, so two orders of one sum are compared while inputs move."""
    kernel = np.asarray(jnp.asarray(WEIGHTS["w"][:, 0]).astype(dtype))
    order = np.random.default_rng(2).permutation(WIDTH)

    def flow(w, arrays):
        x, a = arrays["x"], w["a"].astype("float32")
        return {"y": x @ a * wobble(x, 3e-7) > x[:, order] @ a[order]}

    check_flow(flow, {"a": kernel}, {"x": EXAMPLE["x"]})


@pytest.mark.thorough
def test_ties_of_float64_fall_to_either_side():
    kernel = WEIGHTS["w"][:, 0].astype("float64")

    def flow(w, arrays):
        x = arrays["x"]
        return {"y": x @ w["a"] * wobble(x, 1e-15) > x @ w["b"]}

    with jax.enable_x64(True):
        check_flow(flow, {"a": kernel, "b": kernel}, {"x": EXAMPLE["x"].astype("float64")})


def test_one_integer_in_two_hundred_is_a_difference():
    """The self test allows 1 % of integers beside floats."""

    def flow(w, arrays):
        order = jnp.argsort(arrays["x"] @ w["w"], 1)
        return {"ids": order.at[:, 0].set(place(order))}

    kernel = np.random.default_rng(1).normal(size=(WIDTH, 200)).astype("float32")
    with pytest.raises(ValueError, match=r"difference of 0\.005 in the output 'ids'"):
        check_flow(flow, {"w": kernel}, {"x": EXAMPLE["x"]})


@pytest.mark.thorough
def test_results_near_overflow_may_be_infinite():
    largest = np.full(3, np.finfo(np.float32).max)

    def flow(w, arrays):
        x = arrays["x"]
        return {"y": w["w"] * x * wobble(x, 1.2e-7)[:, None]}

    check_flow(flow, {"w": largest}, {"x": np.ones((ROWS, 3), "float32")})


TIE = WEIGHTS["w"][:, 0]
ADVICE = (
    r", pass weights that fn captures in params, in 16 bits or more, so that rounding can be told "
    r"from dependence, or write batch_sizes=\(1,\)"
)


@pytest.mark.thorough
@pytest.mark.parametrize("weights", [{}, {"one": np.ones((), "float32")}], ids=["none", "one"])
def test_rounding_of_captured_weights_is_not_tried(weights):
    """No input or weight moves the tie, which may be honest."""

    def products(ids, factor):
        x = jnp.asarray(EXAMPLE["x"])[ids[:, 0] % ROWS]
        return {"y": x @ jnp.asarray(TIE) * factor > x @ jnp.asarray(TIE)}

    def placed(w, arrays):
        return products(arrays["ids"], wobble(arrays["ids"], 1e-7))

    def sized(w, arrays):
        return products(arrays["ids"], 1 + 1e-7 * (len(arrays["ids"]) > 1))

    example = {"ids": EXAMPLE["ids"]}
    with pytest.raises(ValueError, match=f"its place .* whole batch{ADVICE}"):
        check_flow(placed, weights, example)
    with pytest.raises(ValueError, match=f"number of rows .* whole batch{ADVICE}"):
        check_flow(sized, weights, example, batch_sizes=(1, 2))


class Counted(Runner):
    """Notes the seeds of copies of the weights, and asserts that there is one copy at a time."""

    seeds: tuple[int, ...] = ()
    runs: tuple[weakref.ref, ...] = ()

    def nudged(self, *, seed):
        assert all(each() is None for each in self.runs)
        run = super().nudged(seed=seed)
        self.runs += (weakref.ref(run),)
        self.seeds += (seed,)
        return run


def test_nudges_end_when_they_explain_the_difference():
    def flow(w, arrays):
        x = arrays["x"]
        return {"y": x @ w["a"] * wobble(x, 1e-7) > x @ w["b"]}

    run = check_flow(flow, {"a": TIE, "b": TIE}, {"x": EXAMPLE["x"]}, Counted)
    # Five rows, each with a tie that a nudge decides: one or two copies show it.
    assert run.seeds in ((0,), (0, 1))


@pytest.mark.thorough
def test_one_copy_of_the_weights_at_a_time():
    run = Counted(
        lambda w, arrays: {"y": arrays["x"] @ w["w"] + len(arrays["x"])},
        WEIGHTS,
        [Platform(name="cpu")],
    )
    with pytest.raises(ValueError, match="between batches of 1 and of 2"):
        check_places(run, {"x": EXAMPLE["x"]}, batch_sizes=(1, 2), any_size=False)
    # One for each seed, although there are four batches of one row.
    assert run.seeds == tuple(range(16))
