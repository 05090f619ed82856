"""Random statements with sequential loops: recurrences, sweeps, nests, shortest paths."""

from __future__ import annotations

from dataclasses import replace

from polyml.dtypes import f32, f64
from polyml.einsum_frontend.interpreter.types import Type
from polyml.testing.generate_tensors import Tensor
from polyml.testing.generate_text import ProgramText

__all__ = ["LoopStatements"]


class LoopStatements(ProgramText):
    """Each method writes a loop."""

    def loop_block(self) -> None:
        """Several statements under one loop, with tensors that it carries and tensors of one iteration."""
        ch, scope = self.chooser, self.scope
        steps, size = scope.size(), scope.size()
        carried = self.declare("t", f32, (size,), ch.pick((0, 1)))
        total = scope.fresh("s")
        self.line(f"{total} = 0.0")
        self.line(f"for n in {ch.pick((f'range({steps})', f'range({steps} - 1, -1, -1)', f'range(0, {steps}, 2)'))}:")
        self.indent += 1
        scope.loops["n"] = steps
        t = scope.add(Tensor(carried, f32, (size,), 8.0, None, rough=True))
        value = scope.expression({"i": size}, 2)
        local = scope.fresh("v")
        self.line(
            f"{local}[i] = {carried}[i] / 2 + tanh({value.text if value.type.dtype.kind != 'b' else f'f32({value.text})'})"
        )
        scope.add(Tensor(local, f32, (size,), 8.0, None, rough=True))
        if ch.flag(50):
            self.line(f"{total} = {total} / 2 + sum[k]({local}[k]) / 16")
        if ch.flag(30):
            self.line("if i >= 1:")
            self.line(f"    {carried}[i] = f32({local}[i - 1] + {carried}[i] / 2)")
        else:
            self.line(f"{carried}[i] = f32({ch.pick((local + '[i]', f'max[k]({local}[k]) + {local}[i]'))})")
        self.line(f"{carried}[i] *= 0.5")
        del scope.loops["n"], scope.tensors[local]
        self.indent -= 1
        scope.rounding += 16 + 2 * scope.extent(steps) + scope.extent(size)
        scope.tensors[carried] = replace(t, bound=8.0)
        self.made.append(carried)

    def recurrence(self) -> None:
        """`t[n] = t[n - 1] / 2 + e`, forwards or backwards, perhaps through a tensor that lives for one iteration."""
        ch, scope = self.chooser, self.scope
        steps, left = scope.size(), self.left(0, 1)
        if scope.extent(steps) == 0:
            return self.pointwise()
        name = self.declare("t", f32, (steps, *left.values()), 0)
        forwards = not ch.flag(40)
        self.line(f"for n in range(1, {steps}):" if forwards else f"for n in range({steps} - 2, -1, -1):")
        self.indent += 1
        scope.loops["n"] = steps
        value = scope.expression(left, 2)
        if value.type.dtype != f32:
            value = replace(value, text=f"f32({value.text})", type=Type(f32))
        subscripts = "".join(f", {i}" for i in left)
        before = f"{name}[n {'-' if forwards else '+'} 1{subscripts}]"
        if left and ch.flag(30):
            local = scope.fresh("v")
            self.line(f"{local}[{', '.join(left)}] = {before} / 2")
            before = f"{local}[{', '.join(left)}] * 1"
        else:
            before = f"{before} / 2"
        self.line(f"{name}[n{subscripts}] = {before} + {value.text}")
        del scope.loops["n"]
        self.indent -= 1
        scope.rounding += scope.extent(steps)
        self.make(name, (steps, *left.values()), replace(value, bound=2 * value.bound, grain=None))
        return None

    def sweeps(self) -> None:
        """A stencil in place: each sweep sees the values from before it."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(ch.pick((f32, f64)), 1, 2)
        size = x.dims[0]
        count = ch.integer(1, 3)
        steps = scope.integer(count, count) if ch.flag(30) else str(count)
        rest = ", j" if len(x.dims) == 2 else ""
        self.line(f"for n in range({steps}):")
        self.line(f"    if 1 <= i < {size} - 1:")
        self.line(f"        {x.name}[i{rest}] = ({x.name}[i - 1{rest}] + {x.name}[i + 1{rest}]) / 2")
        scope.rounding += count
        self._overwrite(x, x.bound, None if x.grain is None else x.grain + count)

    def nested_loops(self) -> None:
        """Instances one after another: all subscripts are loop variables."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(f32, 1, 2)
        rows = x.dims[0]
        backwards = ch.flag(30)
        self.line(f"for n in range({rows} - 2, -1, -1):" if backwards else f"for n in range(1, {rows}):")
        near = "n + 1" if backwards else "n - 1"
        if len(x.dims) == 1:
            self.line(f"    {x.name}[n] = ({x.name}[n] + {x.name}[{near}]) / 2")
        else:
            self.line(f"    for m in range(1, {x.dims[1]}):")
            self.line(f"        {x.name}[n, m] = ({x.name}[{near}, m] + {x.name}[n, m - 1]) / 2")
        scope.rounding += sum(map(scope.extent, x.dims))
        self._overwrite(x, x.bound, None)

    def paths(self) -> None:
        """Shortest paths: row and column of the step are read while the matrix is written."""
        scope = self.scope
        size = scope.size()
        squares = [t for t in scope.tensors.values() if t.dims == (size, size) and t.dtype.is_float]
        x = self.chooser.pick(squares) if squares else scope.parameter((size, size), f32)
        self.line(f"for n in range({size}):")
        self.line(f"    {x.name}[i, j] = min({x.name}[i, j], abs({x.name}[i, n]) + abs({x.name}[n, j]))")
        self._overwrite(x, x.bound, x.grain)
