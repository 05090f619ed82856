# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Scheduling, from dependences to tiles
#
# When may a loop be tiled, turned around, run in parallel? We follow a stencil and a matrix product from their dependences to fast loops, one transformation at a time. Each step
# is proved legal before it is taken; what may not be done is refused with the pair of instances that it would run in the wrong order.

# %%
import matplotlib.pyplot as plt
import numpy as np
import polyml as pm
from polyml.demo.measure import interleaved
from polyml.errors import IllegalScheduleError
from polyml.viz import draw

plt.rcParams["figure.dpi"] = 60

# %% [markdown]
# ## A stencil in space and time
#
# Each step averages three neighbours of the step before. We keep all steps, so that a point of the picture is an element of the array.

# %%
heat_text = """
def heat(a: f64["T N"]):
    for t in range(1, T):
        if 1 <= i < N - 1:
            a[t, i] = (a[t - 1, i - 1] + a[t - 1, i] + a[t - 1, i + 1]) * 0.33
    return a
"""
heat = pm.einsum(heat_text)
small = heat.lower(np.zeros((13, 30)))
written = small.schedule.written()
(S,) = written.statements
print(written)

# %% [markdown]
# `coincident 1` says that the loop over `i` carries no dependence: all points of a step may be computed at once. The loop over `t` carries them all. The iteration domain with its
# dependences, and the order as written:

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(12, 3.5), layout="constrained")
draw(written, S, dependences=True, ax=left)
draw(written, S, order=True, ax=right).set_title("as written: a step at a time");

# %% [markdown]
# A long row does not stay in the cache until the next step reads it. Tiles over `t` and `i` would compute several steps of a few points while they are there. But not square ones:

# %%
try:
    written.tile(S, t=4, i=8)
except IllegalScheduleError as refusal:
    print(refusal)

# %% [markdown]
# An arrow leaves the tile on its left side and comes back into an earlier tile. Skewed by `t`, all arrows point up or to the right, and tiles of the skewed loops are parallelograms:

# %%
tiled = written.skew(S, "i", "t").tile(S, t=4, i=8)
print(tiled)
fig, (left, right) = plt.subplots(1, 2, figsize=(12, 3.5), layout="constrained")
draw(tiled, S, dependences=True, ax=left)
draw(tiled, S, order=True, ax=right).set_title("a tile at a time");

# %% [markdown]
# Tiles depend on tiles below and to the left, so that no tile loop is parallel; but the tiles on a diagonal are independent. A *wavefront* runs the diagonals in order, and the tiles of
# one in parallel. It starts with a single tile. *Diamond* tiles (Bandishti et al., SC'12) lie between the two outermost directions of the dependences; all tiles of a front start
# at once.

# %%
fronts = tiled.wavefront(S, "t_tile", "i_tile").parallelize(S, "i_tile")
diamonds = written.diamond(S, "t", "i", size=8).parallelize(S, "i_tile")
fig, (left, right) = plt.subplots(1, 2, figsize=(12, 3.5), layout="constrained")
draw(fronts, S, ax=left).set_title("wavefront: tiles of one colour run at once")
draw(diamonds, S, ax=right).set_title("diamonds: full width from the start");

# %% [markdown]
# The loops that stand for the diamonds:

# %%
print(diamonds.loops())

# %% [markdown]
# All of them compute the same:

# %%
start = np.random.default_rng(0).standard_normal((13, 30))
expected = heat(start.copy())
for schedule in (tiled, fronts, diamonds):
    assert np.allclose(small.with_schedule(schedule).compile()(start.copy()), expected)

# %% [markdown]
# ## The same for two arrays, and its time
#
# In practice two rows are enough, and each time step has two halves. To tile over both halves they become one loop: time counts in halves (`scale`), the second half runs one
# later (`shift`), and the loops over `i` are fused.

# %%
jacobi = pm.einsum("""
def jacobi(a: f64["N"], b: f64["N"]):
    for t in range(32):
        if 1 <= i < N - 1:
            b[i] = (a[i - 1] + a[i] + a[i + 1]) * 0.33
            a[i] = (b[i - 1] + b[i] + b[i + 1]) * 0.33
    return a, b
""")
a, b = np.random.default_rng(0).random((2, 2_000_000))
lowered = jacobi.lower(a, b)
plain = lowered.schedule.written()
first, second = plain.statements
halves = plain.scale(first, "t", 2).shift(second, t=1).fuse(first, second)
print(halves)

# %%
schedules = {
    "as written": plain,
    "vectors": plain.vectorize(first, "i", 2).vectorize(second, "i", 2),
    "tiles": halves.skew(first, "i", "t").tile(first, t=32, i=2048).vectorize(first, "i"),
    "diamonds": halves.diamond(first, "t", "i", size=2048).vectorize(first, "i"),
}
kernels = {name: lowered.with_schedule(schedule).compile() for name, schedule in schedules.items()}
results = {name: kernel(a.copy(), b.copy())[0] for name, kernel in kernels.items()}
assert all(np.allclose(result, results["as written"]) for result in results.values())
stencil_times = interleaved({name: lambda run=kernel: run(a, b) for name, kernel in kernels.items()}, seconds=1)
{name: f"{1e3 * seconds:.0f} ms" for name, seconds in stencil_times.items()}

# %% [markdown]
# ## A matrix product
#
# The sum is two statements, one that clears and one that adds; a third one uses the result.

# %%
dense = pm.einsum("""
def dense(x: f64["N K"], w: f64["K M"]):
    c[i, j] = x[i, k] * w[k, j]
    d[i, j] = max(c[i, j], 0)
    return d
""", threads=1)
x, w = np.random.default_rng(0).standard_normal((2, 384, 384))
product = dense.lower(x, w)
steps = {"as written": product.schedule.written()}
print(steps["as written"])

# %% [markdown]
# The updates of one element are a *reduction*: their order is free, but they may not run at once.

# %%
try:
    steps["as written"].parallelize("S_c", "k")
except IllegalScheduleError as refusal:
    print(refusal)

# %% [markdown]
# Step by step: everything in one nest; the accumulator as a register; lanes along `j`; several rows of accumulators at once, which share what they read of `w`; tiles whose part of `w`
# stays in the first-level cache. (At this size all of `w` stays in the second level, so that the last step changes little here.)

# %%
fused = steps["as written"].fuse("S_c_init", "S_c", depth=2).fuse("S_c", "S_d", depth=2)
steps["fused, c a register"] = fused.contract("c")
steps["vectors"] = fused.vectorize("S_c", "j", 2).contract("c")
steps["register tiles"] = fused.unroll_and_jam("S_c", "i", 8).vectorize("S_c", "j", 2).contract("c")
steps["cache tiles"] = (
    fused.tile("S_c", i=128, j=16).interchange("S_c", "i_tile", "j_tile").unroll_and_jam("S_c", "i", 8).vectorize("S_c", "j", 2).contract("c")
)
print(steps["cache tiles"])

# %% [markdown]
# The tiles of a small product, in the plane of the result:

# %%
tiny = dense.lower(np.zeros((12, 4)), np.zeros((4, 24))).schedule.written()
tiny_tiles = tiny.tile("S_d", i=4, j=8)
fig, (left, right) = plt.subplots(1, 2, figsize=(12, 3.5), layout="constrained")
draw(tiny, "S_d", order=True, ax=left).set_title("row by row")
draw(tiny_tiles, "S_d", order=True, ax=right).set_title("tile by tile");

# %% [markdown]
# And the time of each step on one thread, next to what the compiler chooses by itself:

# %%
runs = {name: product.with_schedule(schedule).compile() for name, schedule in steps.items()}
runs["polyml's own choice"] = product.compile()
assert all(np.allclose(run(x, w), np.maximum(x @ w, 0)) for run in runs.values())
product_times = interleaved({name: lambda run=run: run(x, w) for name, run in runs.items()}, seconds=1)
{name: f"{2e-9 * 384**3 / seconds:.1f} GFLOP/s" for name, seconds in product_times.items()}

# %% [markdown]
# ## What the scheduler weighs
#
# polyml finds its loops with an integer linear program per loop. Every dependence gives constraints (Farkas' lemma), and among the legal loops a *list of cost functions* decides, the
# first one before the second and so on. Any of them may be left out. Here is the stencil under three lists: all dependences to end at one loop, so that the loop inside is free of them; or
# no wish but small coefficients, which gives two loops that may be tiled; or Pluto's choice, short distances.

# %%
def chosen(program, costs, *arrays):
    """The schedule for a list of cost functions, before anything is tiled or vectorized."""
    lowered = pm.einsum(program, costs=costs, threads=1, vectorize=False, tile_sizes=(), register_tile=()).lower(*arrays)
    print(", ".join(costs))
    print(lowered.text("schedule"), end="\n\n")


for costs in (("coefficients", "satisfaction"), ("coefficients", "order"), ("parallelism", "reuse", "coefficients", "order")):
    chosen(heat_text, costs, np.zeros((13, 30)))

# %% [markdown]
# A table that is filled along its columns, as it is written. Each element needs the one above and the one on the left, so that either loop may be the outer one. Nothing but
# *contiguity* knows that rows are what memory likes:

# %%
table = """
def table(a: f64["M N"]):
    for j in range(1, N):
        for i in range(1, M):
            a[i, j] = 0.5 * (a[i - 1, j] + a[i, j - 1])
    return a
"""
lists = {
    "order": ("coefficients", "order"),
    "contiguity, order": ("coefficients", "contiguity", "order"),
}
grid = np.random.default_rng(0).random((1500, 1500))
cells = {}
for name, costs in lists.items():
    chosen(table, costs, grid)
    cells[name] = pm.einsum(table, costs=costs, threads=1).compile(grid)
filled = [run(grid.copy()) for run in cells.values()]
assert np.allclose(*filled)
table_times = interleaved({name: lambda run=run: run(grid) for name, run in cells.items()}, seconds=1)
{name: f"{1e3 * seconds:.1f} ms" for name, seconds in table_times.items()}

# %%
fig, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 3), layout="constrained")
left.barh(list(stencil_times), [1e3 * t for t in stencil_times.values()])
left.set_xlabel("ms, stencil")
middle.barh(list(product_times), [1e3 * t for t in product_times.values()])
middle.set_xlabel("ms, product")
right.barh(list(table_times), [1e3 * t for t in table_times.values()])
right.set_xlabel("ms, table");
