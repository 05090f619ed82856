// Asynchronous copies: by order of the launch they land at once, or when they are waited for; until then the target is NaN. A wait is for the groups that are
// closed, all but the last `prior` ones: what is in no group yet, or in one of those, has not landed behind it.
#pragma once
#include <cstring>

static inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) __builtin_trap();
  if ((uintptr_t)to % bytes || (uintptr_t)from % bytes) __builtin_trap();
  if (!emu::late) {
    memcpy(to, from, bytes);
    return;
  }
  memset(to, 0xff, bytes);
  emu::Fiber& me = emu::fibers[emu::current];
  me.copies.push_back({to, from, bytes, me.groups});
}
static inline void __pipeline_commit() { ++emu::fibers[emu::current].groups; }
static inline void __pipeline_wait_prior(int prior) {
  emu::Fiber& me = emu::fibers[emu::current];
  size_t landed = 0;
  for (; landed < me.copies.size() && me.copies[landed].group < me.groups - prior; ++landed)
    memcpy(me.copies[landed].to, me.copies[landed].from, me.copies[landed].bytes);
  me.copies.erase(me.copies.begin(), me.copies.begin() + landed);
}
