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
# # A first program, from Einstein notation to machine code
#
# We write one dense layer, `relu(x @ w + b)`, and follow it through every stage of the compiler. Each stop is an object that prints; nothing is hidden.

# %%
import numpy as np
import polyml as pm

dense = pm.einsum("""
def dense(x: f32["N K"], w: f32["K M"], b: f32["M"]):
    y[n, m] = relu(x[n, k] * w[k, m] + b[m])
    return y
""")
print(dense)

# %% [markdown]
# The text above is the *resolved* program: the names are told apart and the implied sum is written out. `k` is in two factors of a product and not
# on the left side, so the product is summed over it; `b[m]` stands outside of the sum.
#
# It is called like a function. The first call compiles for these dtypes, shapes and layouts; later calls only dispatch.

# %%
rng = np.random.default_rng(0)
x, w, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((64, 48), (48, 80), (80,)))
y = dense(x, w, b)
np.abs(y - np.maximum(x @ w + b, 0)).max()

# %% [markdown]
# ## The graph
#
# Tensor equations in SSA. The reduction became an equation of its own; sizes are numbers now.

# %%
lowered = dense.lower(x, w, b)
lowered.show("graph")

# %% [markdown]
# ## Statements and their domains
#
# Fusion put both equations into one region. As a *scop* it has three statements: the reduction's start, its update, and the elementwise rest. Each statement's
# *iteration domain* is a set of integer points, one per execution.

# %%
lowered.show("domains")

# %% [markdown]
# ## Accesses
#
# The scop's maps: the elements that each instance reads and writes, and when it runs in the written order, as vectors in lexicographic order.

# %%
lowered.show("accesses")

# %% [markdown]
# ## Dependences
#
# Exact relations between instances. Flow dependences must be respected by every schedule. Those between updates of one sum are kept apart: the order
# of a sum may change (say `precise=True` if it may not).

# %%
lowered.show("dependences")

# %% [markdown]
# isl's sets and maps are live objects. How many multiply-adds are there?

# %%
scop = lowered.stages.regions[0].scop
domain = scop.statements["S_y_sum"].domain
print(domain)
print("points:", domain.count_val())

# %% [markdown]
# ## The schedule
#
# A tree: bands are loops, sequences are order, marks say how a loop runs. Rows are jammed, columns run along vector lanes, and the accumulator lives inside the tile.

# %%
lowered.show("schedule")

# %% [markdown]
# What was decided, and why:

# %%
print(lowered.explain())

# %% [markdown]
# ## The loops
#
# The loop passes carried the marks out: a register tile of vector accumulators around a loop over `k`, and remainders with masked ends.

# %%
print("\n".join(lowered.text("loops").splitlines()[:40]))

# %% [markdown]
# ## Machine code
#
# LLVM makes the rest. The inner loop is loads, broadcasts and fused multiply-adds.

# %%
code = lowered.text("asm")
print(len(code.splitlines()), "lines of assembly,", code.count("vfmadd"), "fused multiply-adds")

# %% [markdown]
# ## Time
#
# Side by side with NumPy, in turns, medians. Only the ratio means anything on a shared machine.

# %%
from polyml.demo.measure import interleaved

times = interleaved({"numpy": lambda: np.maximum(x @ w + b, 0), "polyml": lambda: dense(x, w, b)}, seconds=0.5)
{name: f"{1e6 * seconds:.1f} us" for name, seconds in times.items()}
