"""Pipelined loops in C: what they call, with OpenMP's threads (polyml.codegen.llvm.functions.pipeline says how they run).

    row_progress *rows = new_rows(n);       of a loop with n iterations; rows[0] is done, iteration k has rows[k + 1]
    begin_stage(row, v);                    all of this row before v is done; returns when the row before has gone beyond v
    end_row(row);

Iterations are dealt out in turns (`schedule(static, 1)`), so that a thread never waits for what it has yet to do itself. OpenMP's own doacross loops (`ordered(2)` with `depend(sink: ...)`) ask for stages whose bounds
do not depend on the row. Without OpenMP one thread runs the rows in order and never waits.
"""

from __future__ import annotations

__all__ = ["LOCAL_NAMES", "NEEDED", "PIPELINE"]

LOCAL_NAMES = ("row", "rows")
"""Of functions with such loops."""

NEEDED = "new_rows("
"""A text with this needs PIPELINE."""

PIPELINE = """\
#ifndef _WIN32
#include <sched.h>
#endif

/* All stages before `done_to`, of this row and of those before it, are done. A line for each row. */
typedef struct { int64_t done_to, others[7]; } row_progress;

static inline row_progress *new_rows(int64_t count)
{
    row_progress *rows = malloc((size_t)(count > 0 ? count + 1 : 1) * sizeof *rows);
    if (!rows)
        abort();
    rows[0].done_to = INT64_MAX;
    for (int64_t k = 1; k <= count; k++)
        rows[k].done_to = INT64_MIN;
    return rows;
}

static inline void wait_until_beyond(const row_progress *row, int64_t stage)
{
    for (int64_t tries = 0;; tries++) {
        int64_t done_to;
        #pragma omp atomic read seq_cst
        done_to = row->done_to;
        if (done_to > stage)
            return;
#ifndef _WIN32
        if (tries > 1000)
            sched_yield();
#endif
    }
}

/* The stage before is done; up to this one the row before has to be first. */
static inline void begin_stage(row_progress *row, int64_t stage)
{
    #pragma omp atomic update seq_cst
    row->done_to += 1;
    wait_until_beyond(row - 1, stage);
    #pragma omp atomic write seq_cst
    row->done_to = stage;
}

static inline void end_row(row_progress *row)
{
    begin_stage(row, INT64_MAX - 1);
    #pragma omp atomic write seq_cst
    row->done_to = INT64_MAX;
}
"""
