"""Random statements that are about their accesses: windows, slices, permutations, gathers and scatters."""

from __future__ import annotations

import math
from dataclasses import replace

from polyml.dtypes import f32, f64, i32, i64
from polyml.testing.generate_text import ProgramText

__all__ = ["AccessStatements"]


class AccessStatements(ProgramText):
    """Each method writes a statement, or a few."""

    def slices(self) -> None:
        """Parts of a filled tensor are assigned: at an offset, with a stride, in one row."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(ch.pick((f32, f64, i32)), 1, 2)
        extent = scope.extent(x.dims[0])
        rest = ", j" if len(x.dims) == 2 else ""
        name = self.declare("t", x.dtype, (str(2 * extent + 1), *x.dims[1:]), 2)
        at = ch.pick(("i + 1", "2 * i", f"{2 * extent} - i", "2 * i + 1"))
        self.line(f"{name}[{at}{rest}] = {x.name}[i{rest}]")
        if ch.flag(50):
            self.line(f"{name}[0{rest}] = 3")
        self.make(name, (str(2 * extent + 1), *x.dims[1:]), replace(scope.read(x, ""), bound=max(3.0, x.bound)))

    def permuted(self) -> None:
        """A tensor assigned from its own other elements: the right side sees the values from before."""
        ch, scope = self.chooser, self.scope
        size = scope.size()
        square = ch.flag(50)
        dims = (size, size) if square else (size,)
        known = [t for t in scope.tensors.values() if t.dims == dims and t.dtype.kind != "b"]
        x = ch.pick(known) if known else scope.parameter(dims, ch.pick((f32, f64, i32)))
        n, last = x.name, f"{size} - 1"
        if square:
            right = ch.pick(
                (f"{n}[j, i]", f"{n}[i, {last} - j] + {n}[j, i]", f"{n}[{last} - i, j] - {n}[i, j]", f"sum[k]({n}[i, k]) - {n}[i, j]",
                 f"max[k]({n}[k, j])", f"{n}[i, 0] + {n}[0, j]" if scope.extent(size) else f"{n}[j, i]")
            )  # fmt: skip
            self.line(f"{n}[i, j] = {right}")
        else:
            right = ch.pick(
                (f"{n}[{last} - i]", f"where(i >= 1, {n}[i - 1], 0)", f"where(i < {last}, {n}[i + 1], 0) + {n}[i]",
                 f"{n}[i // 2]", f"{n}[i] - {n}[{last} - i]", f"max[k]({n}[k]) - {n}[i]")
            )  # fmt: skip
            self.line(f"{n}[i] = {right}")
        length = scope.extent(size)
        scope.rounding += length
        self._overwrite(x, x.bound * (length + 2), x.grain)

    def window(self) -> None:
        """Convolutions and pools: `t[h] = x[2*h + r]` over r, the range of h from the bounds."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(f32 if ch.flag(70) else f64, 1, 2)
        stride, dilation = ch.pick((1, 2)), ch.pick((1, 2))
        length = scope.extent(x.dims[0])
        taps = ch.integer(1, 3)
        if (taps - 1) * dilation + 1 > length:
            taps = 1
        if length == 0:
            return self.pointwise()
        rest = ", j" if len(x.dims) == 2 else ""
        at = f"{'' if stride == 1 else f'{stride} * '}h + {'' if dilation == 1 else f'{dilation} * '}r"
        out = (length - 1 - (taps - 1) * dilation) // stride + 1
        dims = (str(out), *x.dims[1:])
        name = scope.fresh("t")
        kind = ch.pick(("sum", "max", "min"))
        self.line(f"{name}[h{rest}] = {kind}[r < {taps}]({x.name}[{at}{rest}])")
        scope.rounding += taps
        bound = x.bound * (taps if kind == "sum" else 1)
        self.make(name, dims, replace(scope.read(x, ""), bound=bound))
        return None

    def gather(self) -> None:
        """`t[i, j] = x[ids[i], j]`."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(f32, 1, 2)
        high = scope.extent(x.dims[0])
        if high == 0:
            return self.pointwise()
        ids = scope.parameter((scope.size(),), ch.pick((i32, i64)), high)
        rest = ", j" if len(x.dims) == 2 else ""
        name = scope.fresh("t")
        self.line(f"{name}[i{rest}] = {x.name}[{ids.name}[i]{rest}]")
        self.make(name, (*ids.dims, *x.dims[1:]), scope.read(x, ""))
        return None

    def scatter(self) -> None:
        """`t[ids[i]] += x[i]`."""
        ch, scope = self.chooser, self.scope
        x = self._tensor(f32, 1, 2)
        size = scope.size()
        if scope.extent(size) == 0:
            return self.pointwise()
        ids = scope.parameter(x.dims[:1], ch.pick((i32, i64)), scope.extent(size))
        name = self.declare("t", f32, (size,), 0)
        rest = ", j" if len(x.dims) == 2 else ""
        value = scope.read(x, f"i{rest}")
        self.line(f"{name}[{ids.name}[i]] {ch.pick(('+=', '-='))} {value.text}")
        length = math.prod(map(scope.extent, x.dims))
        scope.rounding += length
        made = self.make(name, (size,), replace(value, bound=value.bound * max(1, length)))
        self._overwrite(made, made.bound, made.grain)
        return None

    def spread(self) -> None:
        """Several instances hit one element of an affine left side: `t[2*i + r] += x[i] * f[r]`."""
        ch, scope = self.chooser, self.scope
        x, f = self._tensor(f32, 1, 1), self._tensor(f32, 1, 1)
        stride = ch.pick((1, 2))
        n, r = scope.extent(x.dims[0]), scope.extent(f.dims[0])
        size = str(max(0, stride * (n - 1)) + r + ch.integer(0, 1))
        name = self.declare("t", f32, (size,), 0)
        at = f"{'' if stride == 1 else '2 * '}i + r"
        self.line(f"{name}[{at}] += {x.name}[i] * {f.name}[r]")
        scope.rounding += r
        grain = None if x.grain is None or f.grain is None else x.grain + f.grain
        made = self.make(
            name,
            (size,),
            replace(scope.read(x, ""), bound=x.bound * f.bound * max(1, r), grain=grain, rough=x.rough or f.rough),
        )
        self._overwrite(made, made.bound, made.grain)
