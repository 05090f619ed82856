"""Lowered: a program for one signature at every stop of the pipeline, to look at and to compile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal, NoReturn, get_args

from polyml.codegen.llvm.machine import assembly, machine_of
from polyml.codegen.printer import loops_html, loops_text
from polyml.compiler.driver import Stages, c_text, compile_stages, llvm_text, with_schedules
from polyml.einsum_frontend.syntax import Program
from polyml.errors import PolymlError
from polyml.graph.plan import Launch
from polyml.graph.printer import graph_html, graph_latex, graph_text
from polyml.nesting import deeply_nested
from polyml.records import dataclass
from polyml.runtime.dispatch import COMPILE_LOCK
from polyml.runtime.kernel import Kernel
from polyml.runtime.native import load_compiled
from polyml.schedule.tree import print_tree, tree_html
from polyml.scop.printer import accesses_text, dependences_text, domains_text
from polyml.scop.scop import Scop
from polyml.shown import counted, preformatted
from polyml.user_schedule import UserSchedule, user_schedule

__all__ = ["Lowered", "LoweredCalls", "View"]

View = Literal["graph", "plan", "domains", "accesses", "dependences", "schedule", "loops", "llvm", "asm", "c", "cuda"]

OPEN = ("graph", "schedule", "loops")
"""Stages that a notebook shows open."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """What `f.lower(...)` gives. program: resolved. stages: graph, plan and regions."""

    program: Program
    stages: Stages

    def __reduce__(self) -> NoReturn:
        """What isl has made is of this process."""
        raise PolymlError(
            f"the stages of {self.program.name} are objects of isl in this process, and cannot be pickled or copied",
            hint="pickle the program, and lower it again",
        )

    @deeply_nested()
    def text(self, what: View = "loops") -> str:
        """One view as text: graph, plan, domains, accesses, dependences, schedule, loops, llvm, asm or c; for a GPU cuda in place of the last three.

        Raises:
            PolymlError: no such view.
        """
        stages = self.stages
        if what in get_args(View) and what not in self.views:
            raise PolymlError(
                f'there is no view "{what}" of code for the target {stages.options.machine.name}',
                hint='show("cuda") needs target="cuda", the other texts of code a CPU',
            )
        match what:
            case "graph":
                return graph_text(stages.graph)
            case "plan":
                return str(stages.launched[0])
            case "domains":
                return "\n\n".join(domains_text(region.scop) for region in stages.regions)
            case "accesses":
                return "\n\n".join(accesses_text(region.scop) for region in stages.regions)
            case "dependences":
                return "\n\n".join(dependences_text(region.scop, region.dependences) for region in stages.regions)
            case "schedule":
                return "\n\n".join(print_tree(region.schedule.tree, region.scop) for region in stages.regions)
            case "loops":
                return "\n\n".join(loops_text(function) for function in stages.functions)
            case "cuda":
                from polyml.compiler.gpu import cuda_regions, cuda_text  # what only a GPU needs

                return cuda_text(cuda_regions(stages))
            case "llvm":
                return llvm_text(stages.launched[1], stages.options)
            case "asm":
                return assembly(llvm_text(stages.launched[1], stages.options), machine_of(stages.options.machine))
            case "c":
                return c_text(stages)
            case _:
                raise PolymlError(f'there is no view "{what}"', hint=f"views: {', '.join(get_args(View))}")

    @property
    def views(self) -> tuple[View, ...]:
        """The views that there are of code for this target."""
        others = ("llvm", "asm", "c") if self.stages.options.machine.is_cuda else ("cuda",)
        return tuple(view for view in get_args(View) if view not in others)

    def show(self, what: View = "loops") -> None:
        """Prints one view (see `text`)."""
        print(self.text(what))

    @deeply_nested()
    def explain(self) -> str:
        """What was fused, tiled, vectorized, parallelized and stored where; what was refused, and which dependence or resource refused it."""
        graph = self.stages.graph
        lines = [
            f"{graph.name}: {counted(len(graph.ops), 'equation')} in {counted(len(self.stages.regions), 'region')}"
        ]
        lines += [f"  warning: {warning}" for warning in graph.warnings]
        numbers = [
            f"{parameter.name} = {value}"
            for parameter, value in zip(self.program.parameters, self.stages.key, strict=False)
            if isinstance(value, int)
        ]
        lines += [f"  for {', '.join(numbers)} only"] if numbers else []
        lines += [f"  for any {', '.join(graph.sizes)}"] if graph.sizes else []
        lines += [f"  where {value.nonnegative_text()}" for value in graph.requires]
        lines += ["  where the order of its sums suits the sizes, as it does those of this call"] if graph.suits else []
        launches = Counter(step.region for step in self.stages.plan.steps if isinstance(step, Launch))
        launched = {function.name for function in self.stages.launched[1]}
        for number, lowered in enumerate(self.stages.regions):
            made = ", ".join(lowered.scop.statements)
            lines.append(f"region {lowered.region.name}: statements {made}")
            if launches[number] > 1:
                lines.append(f"  launched {launches[number]} times, for what is the same but for names and places")
            if lowered.loops.name not in launched:
                lines.append(
                    "  never launched: nothing reads the zeros around this copy, and what it copies is read where it lies"
                )
            notes = Counter(f"{note.stage}: {note.subject}: {note.text}" for note in lowered.notes)
            lines += [f"  {note}" + (f" ({count} times)" if count > 1 else "") for note, count in notes.items()]
        if self.stages.options.machine.is_cuda:
            from polyml.compiler.gpu import kernel_lines  # what only a GPU needs

            lines += kernel_lines(self.stages)
        return "\n".join(lines)

    @property
    def schedules(self) -> dict[str, UserSchedule]:
        """The schedule of every region by the region's name, to transform by hand."""
        precise = self.stages.options.precise
        return {r.region.name: user_schedule(r.schedule, precise=precise) for r in self.stages.regions}

    @property
    def schedule(self) -> UserSchedule:
        """The schedule of the only region.

        Raises:
            PolymlError: there are several regions.
        """
        if len(self.stages.regions) != 1:
            names = ", ".join(r.region.name for r in self.stages.regions)
            raise PolymlError(
                f"{self.stages.graph.name} has {len(self.stages.regions)} regions, each with a schedule",
                hint=f"lowered.schedules[name], with one of {names}",
            )
        return next(iter(self.schedules.values()))

    def with_schedule(self, *schedules: UserSchedule) -> Lowered:
        """The same program under other schedules, one per region at most.

        Raises:
            PolymlError: a schedule of no region of this program.
        """
        known = {r.region.name: r for r in self.stages.regions}
        for given in schedules:
            own = known.get(given.name)
            with COMPILE_LOCK:
                fits = own is not None and _computes(given.schedule.scop, own.scop)
            if not fits:
                raise PolymlError(
                    f"{given.name} is no region of this lowered program", hint=f"regions: {', '.join(known)}"
                )
        return replace(self, stages=with_schedules(self.stages, {s.name: s.schedule for s in schedules}))

    def compile(self) -> Kernel:
        """The kernel.

        Raises:
            PolymlError: the target is not this machine.
        """
        if self.stages.options.machine.is_cuda:
            from polyml.compiler.gpu import cuda_kernel
            from polyml.runtime.cuda.pycuda_device import the_device  # what only a GPU needs

            return cuda_kernel(self.program, self.stages, the_device())
        compiled = compile_stages(self.program, self.stages)
        return load_compiled(compiled, threads=self.stages.options.threads)

    def __str__(self) -> str:
        return f"{self.text('schedule')}\n\n{self.text('loops')}"

    def __repr__(self) -> str:
        regions = counted(len(self.stages.regions), "region")
        return f"<polyml.Lowered {self.program.name}: {regions}; show(..) prints {', '.join(self.views)}>"

    @deeply_nested()
    def _repr_html_(self) -> str:
        """Every stage down to the loops, for a notebook; the graph, the schedule trees and the loops are open."""
        texts = ((name, preformatted(self.text(name))) for name in ("domains", "accesses", "dependences"))
        trees = "".join(tree_html(region.schedule.tree, region.scop) for region in self.stages.regions)
        loops = "".join(loops_html(function) for function in self.stages.functions)
        parts = {
            "graph": graph_html(self.stages.graph),
            **dict(texts),
            "schedule": trees,
            "decisions": preformatted(self.explain()),
            "loops": loops,
        }
        return "".join(
            f"<details{' open' if name in OPEN else ''}><summary>{name}</summary>{part}</details>"
            for name, part in parts.items()
        )

    @deeply_nested()
    def _repr_latex_(self) -> str:
        """The graph's equations."""
        return graph_latex(self.stages.graph)


def _computes(made: Scop, own: Scop) -> bool:
    """Whether a schedule's scop has the same arguments and statements, reductions privatized or not."""
    if made.sizes != own.sizes or not own.context.is_subset(made.context):
        return False
    if any(made.arrays.get(name) != array for name, array in own.arrays.items() if array.kind != "local"):
        return False
    pairs = ((statement, made.statements.get(name)) for name, statement in own.statements.items())
    return all(
        other is not None
        and statement.domain.is_equal(other.domain)
        and (statement.value, statement.reduction) == (other.value, other.reduction)
        and (statement.written == other.written or other.target.array not in own.arrays)
        for statement, other in pairs
    )


@dataclass(frozen=True, slots=True)
class LoweredCalls(Lowered):
    """What `f.bind(...).lower(...)` gives: the calls, without what the constants alone decide. It is to look at."""

    def with_schedule(self, *schedules: UserSchedule) -> Lowered:
        raise PolymlError(
            f"{self.program.name} has constant arguments, which are packed for the schedule that it has",
            hint="transform the schedule of the program before bind",
        )

    def compile(self) -> Kernel:
        raise PolymlError(
            f"{self.program.name} has constant arguments", hint="call the bound program: it compiles itself"
        )
