"""Random small graphs as text: elementwise ops, views, reductions, updates, loops, copies, written inputs."""

from __future__ import annotations

import random

N = 5

_ELEMENTWISE = (
    "{r}[i, j] = {a}[i, j] * 0.5 + {b}[i, j]",
    "{r}[i, j] = {a}[i, j]",
    "{r}[i, j] = {a}[j, i]",
    "{r}[i, j] = {a}[4 - i, j] - {b}[i, 4 - j]",
    "{r}[i, j] = max({a}[i, j], {b}[j, i])",
    "{r}[i, j] = where(i < j, {a}[i, j], {b}[i, j])",
    "{r}[i, j] = where(j < 4, {a}[i, j + 1], f32(0.0))",
    "{r}[i, j] = {v}[i] * {a}[i, j]",
    "{r}[i, j] = {a}[i, j] / ({v}[i] * {v}[i] + 1.0)",
    "{r}[i, j] = exp({a}[i, j] * 0.1)",
    "{r}[i, j] = {v}[j]",
    "{r}[i, j] = f32(0.0)",
)
_REDUCTIONS = (
    "{r}[i, j] = sum[k]({a}[i, k] * {b}[k, j])",
    "{r}[i, j] = sum[k]({v}[i] * {a}[i, k] * {b}[j, k])",
    "{r}[j, i] = sum[k]({a}[k, i] * 0.25 * {b}[j, k])",
    "{r}[i, j] = sum[k](where(k + i < 5, {a}[k + i, j], f32(0.0)) * {b}[k, i])",
    "if k <= i: {r}[i, j] = sum[k]({a}[i, k] * {b}[k, j])",
    "if k <= j: {r}[i, j] = max[k]({a}[i, k] + {b}[k, j])",
)
_TO_VECTOR = (
    "{r}[i] = max[j]({a}[i, j])",
    "{r}[i] = sum[j]({a}[i, j] * {v}[i])",
    "{r}[i] = {v}[4 - i] + {a}[i, i]",
    "{r}[i] = sum[j]({a}[i, j] * {v}[j])",
    "{r}[i] = {v}[i]",
)
_UPDATES = (
    "{r}({a})[i, j] = {b}[j, i] + {a}[i, 4 - j]",
    "{r}({a})[i, j] += {b}[i, j]",
    "if i < j: {r}({a})[i, j] = {b}[i, j]",
    "{r}({a})[2, j] = {v}[j]",
    "{r}({a})[i, j] += sum[k]({a}[i, k] * {b}[k, j])",
    "if i >= 1: {r}({a})[i, j] = {a}[i - 1, j] * 0.5",
)


def random_text(seed: int) -> str:
    """A program over x, y: f32[5, 5] and u: f32[5], where y may be written."""
    return _Draw(random.Random(seed)).program()


class _Draw:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.matrices, self.vectors = ["x", "y"], ["u"]
        self.number = 0

    def program(self) -> str:
        rng = self.rng
        lines = [f"x: f32[{N}, {N}]", f"y: f32[{N}, {N}]", f"u: f32[{N}]"]
        for _ in range(rng.randint(3, 9)):
            lines += self.loop() if rng.random() < 0.15 else self.statement("")
        made = [m for m in (*self.matrices, *self.vectors) if m not in ("x", "y", "u")] or ["x"]
        if rng.random() < 0.5:
            lines.append(f"final(y, {rng.choice(self.matrices)})")
        results = rng.sample(made, min(len(made), rng.randint(1, 3)))
        return "\n".join([*lines, f"return {', '.join(results)}"])

    def name(self) -> str:
        self.number += 1
        return f"t{self.number}"

    def statement(self, pad: str) -> list[str]:
        rng = self.rng
        kinds = (_ELEMENTWISE, _ELEMENTWISE, _REDUCTIONS, _TO_VECTOR, _UPDATES)
        kind = rng.choice(kinds)
        # Recent tensors are likelier, so that chains arise.
        a, b = (rng.choice(self.matrices[-4:] if rng.random() < 0.7 else self.matrices) for _ in range(2))
        name = self.name()
        text = rng.choice(kind).format(r=name, a=a, b=b, v=rng.choice(self.vectors))
        vector = kind is _TO_VECTOR
        (self.vectors if vector else self.matrices).append(name)
        shape = f"{N}" if vector else f"{N}, {N}"
        return [f"{pad}tensor({name}, f32[{shape}])", f"{pad}{text}"]

    def loop(self) -> list[str]:
        rng = self.rng
        initial, inner, after = rng.choice(self.matrices), self.name(), self.name()
        outside = (list(self.matrices), list(self.vectors))
        self.matrices.append(inner)
        body: list[str] = []
        if rng.random() < 0.6:
            name = self.name()
            a, b = rng.choice(outside[0]), rng.choice(outside[0])
            body += [f"    tensor({name}, f32[{N}])", f"    {name}[i] = sum[k]({a}[t, k] * {b}[k, i])"]
            self.vectors.append(name)
        for _ in range(rng.randint(1, 3)):
            body += self.statement("    ")
        following = self.name()
        other = rng.choice(self.matrices)
        body += [
            f"    tensor({following}, f32[{N}, {N}])",
            f"    {following}[i, j] = {inner}[i, j] * 0.5 + {other}[j, i] * 0.1",
        ]
        bounds = rng.choice(("0, 4", "1, 5, 2", "3, -1, -1", "4, 0, -2", "2, 2"))
        self.matrices, self.vectors = outside
        self.matrices.append(after)
        return [f"for t in range({bounds}):", f"    carry({initial}, {inner}, {following}, {after})", *body]
