// CUDA's execution model on one CPU thread, so that the text that nvcc compiles can be run by g++.
//
// Every CUDA thread of a block is a fiber with a stack of its own. A fiber runs until it exits or waits at a barrier or a warp collective, so threads run
// as far apart as the code allows; warps are started in an order that the caller chooses. Blocks run one after another, in a permuted order.
// Shared memory starts as NaN (bytes 0xff) in every block. A barrier that not all threads reach is reported, and so is an access outside an allocation:
// emu_malloc puts arrays between memory that may not be touched.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("emu_shared")))

struct emu_dim3 {
  unsigned x, y, z;
};
// Not static: the compiler must not believe that a switch of stacks leaves them alone.
#define EMU_HIDDEN __attribute__((visibility("hidden")))
EMU_HIDDEN emu_dim3 threadIdx, blockIdx, blockDim, gridDim;

// Vectors; an address that is no multiple of their size is a fault here, as there.
#define EMU_VECTOR(T, name)                                                             \
  struct __attribute__((aligned(2 * sizeof(T)))) name##2 { T x, y; };                   \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define EMU_VECTOR4(T, name)                                                            \
  EMU_VECTOR(T, name)                                                                   \
  struct __attribute__((aligned(4 * sizeof(T)))) name##4 { T x, y, z, w; };                        \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR4(float, float)
EMU_VECTOR4(int, int)
EMU_VECTOR4(unsigned, uint)
EMU_VECTOR4(short, short)
EMU_VECTOR4(unsigned short, ushort)
EMU_VECTOR(double, double)
EMU_VECTOR(long long, longlong)
EMU_VECTOR(unsigned long long, ulonglong)

static inline float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static inline double __longlong_as_double(long long bits) {
  double value;
  memcpy(&value, &bits, 8);
  return value;
}

// The shared variables of all kernels; one dummy makes sure that the section exists.
extern "C" char __start_emu_shared[], __stop_emu_shared[];
__attribute__((used)) static __attribute__((section("emu_shared"))) char emu_dummy = 1;

namespace emu {

enum State { ready, at_barrier, at_warp, done };
enum Fault { fine = 0, deadlock = 1, bad_access = 2, mixed_shuffle = 3 };

struct Copy {  // an asynchronous copy that has not landed yet
  void* to;
  const void* from;
  size_t bytes;
  int group;
};

struct Fiber {
  char* stack;
  emu_dim3 index;
  State state;
  unsigned long long slot;  // what the thread shows to its warp
  std::vector<Copy> copies;
  int groups;               // of asynchronous copies that are closed
#if defined(__x86_64__)
  void* sp;
#else
  ucontext_t context;
#endif
};

static const size_t stack_bytes = 128 * 1024;
static const int max_threads = 1024;
EMU_HIDDEN Fiber fibers[max_threads];
EMU_HIDDEN int count, current;
static void (*runner)(const void*);  // runs what `body` points at
static const void* body;
static bool late;  // asynchronous copies land when they are waited for
static sigjmp_buf escape;
EMU_HIDDEN volatile int fault;

#if defined(__x86_64__)
EMU_HIDDEN void* main_sp;
// Saves the callee-saved registers on the stack in use, and goes on where another stack left off.
extern "C" EMU_HIDDEN void emu_switch(void** from, void* to);
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
static inline void to_main(Fiber& f) { emu_switch(&f.sp, main_sp); }
static inline void to_fiber(Fiber& f) { emu_switch(&main_sp, f.sp); }
#else
static ucontext_t main_context;
static inline void to_main(Fiber& f) { swapcontext(&f.context, &main_context); }
static inline void to_fiber(Fiber& f) { swapcontext(&main_context, &f.context); }
#endif

static void start() {
  runner(body);
  fibers[current].state = done;
  to_main(fibers[current]);
  abort();
}

static void prepare(Fiber& f) {
  if (!f.stack) f.stack = (char*)mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  f.state = ready;
  f.copies.clear();
  f.groups = 0;
#if defined(__x86_64__)
  uintptr_t top = ((uintptr_t)f.stack + stack_bytes) & ~(uintptr_t)15;
  void** sp = (void**)top;
  *--sp = nullptr;         // the return address of start, which does not return
  *--sp = (void*)start;    // where emu_switch returns to
  for (int k = 0; k < 6; ++k) *--sp = nullptr;
  f.sp = sp;
#else
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack;
  f.context.uc_stack.ss_size = stack_bytes;
  f.context.uc_link = nullptr;
  makecontext(&f.context, start, 0);
#endif
}

static void run(int k) {
  current = k;
  threadIdx = fibers[k].index;
  to_fiber(fibers[k]);
}

static inline void wait(State state) {
  Fiber& me = fibers[current];
  me.state = state;
  to_main(me);
}

// Whether all living threads of the warp have arrived; then they go on.
static bool release_warp(int warp) {
  int last = (warp + 1) * 32 < count ? (warp + 1) * 32 : count;
  for (int k = warp * 32; k < last; ++k)
    if (fibers[k].state != at_warp) return false;
  for (int k = warp * 32; k < last; ++k) fibers[k].state = ready;
  return true;
}

static int block(unsigned order) {
  int warps = (count + 31) / 32;
  for (;;) {
    bool moved = false;
    for (int w = 0; w < warps; ++w) {
      int warp = order == 0 ? w : order == 1 ? warps - 1 - w : (int)((w * 7919u + order * 104729u) % (unsigned)warps);
      if (order > 1) {  // a permutation: rotated, every other call reversed
        warp = (w + order) % warps;
        if (order & 1) warp = warps - 1 - warp;
      }
      for (;;) {
        bool ran = false;
        for (int lane = 0; lane < 32; ++lane) {
          int k = warp * 32 + (order & 1 ? 31 - lane : lane);
          if (k < count && fibers[k].state == ready) run(k), ran = true;
        }
        moved |= ran;
        if (!release_warp(warp) && !ran) break;
      }
    }
    int waiting = 0, finished = 0;
    for (int k = 0; k < count; ++k) waiting += fibers[k].state == at_barrier, finished += fibers[k].state == done;
    if (finished == count) return fine;
    if (waiting == count) {
      for (int k = 0; k < count; ++k) fibers[k].state = ready;
    } else if (!moved) {
      return deadlock;
    }
  }
}

static void on_signal(int) {
  siglongjmp(escape, 1);
}

static int launch_by(void (*by)(const void*), const void* kernel, const unsigned* dims, unsigned order) {
  static char signal_stack[64 * 1024];
  gridDim = {dims[0], dims[1], dims[2]};
  blockDim = {dims[3], dims[4], dims[5]};
  count = dims[3] * dims[4] * dims[5];
  if (count > max_threads) return deadlock;
  runner = by;
  body = kernel;
  late = order >> 1 & 1;
  stack_t own = {}, before;
  own.ss_sp = signal_stack;
  own.ss_size = sizeof signal_stack;
  sigaltstack(&own, &before);
  struct sigaction action = {}, old_segv, old_bus, old_ill;
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &old_segv);
  sigaction(SIGBUS, &action, &old_bus);
  sigaction(SIGILL, &action, &old_ill);  // what -fsanitize=alignment traps with
  int result = fine;
  if (sigsetjmp(escape, 1)) {
    result = bad_access;
  } else {
    unsigned long long total = (unsigned long long)dims[0] * dims[1] * dims[2];
    for (unsigned long long b = 0; b < total && result == fine; ++b) {
      unsigned long long at = order == 0 ? b : order & 1 ? total - 1 - b : (b + order) % total;
      blockIdx = {(unsigned)(at % dims[0]), (unsigned)(at / dims[0] % dims[1]), (unsigned)(at / dims[0] / dims[1])};
      memset(__start_emu_shared, 0xff, __stop_emu_shared - __start_emu_shared);
      for (int k = 0; k < count; ++k) {
        fibers[k].index = {k % dims[3], k / dims[3] % dims[4], k / dims[3] / dims[4]};
        prepare(fibers[k]);
      }
      result = block(order);
      if (result == fine && fault) result = fault;
    }
  }
  fault = fine;
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGBUS, &old_bus, nullptr);
  sigaction(SIGILL, &old_ill, nullptr);
  sigaltstack(&before, nullptr);
  return result;
}

// Runs the grid. order: 0 ascending, 1 descending, others: permuted warps and blocks. (<functional> would take longer to read than a small kernel to compile.)
template <typename F>
static int launch(const F& kernel, const unsigned* dims, unsigned order) {
  return launch_by([](const void* f) { (*(const F*)f)(); }, &kernel, dims, order);
}

// A value of another lane. All lanes of the warp meet twice: when all have shown theirs, and when all have looked.
template <typename T>
static T exchange(T value, int source) {
  Fiber& me = fibers[current];
  int first = current / 32 * 32;
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  memcpy(&me.slot, &value, sizeof(T));
  wait(at_warp);
  T found = value;
  int from = first + source;
  if (source >= 0 && source < 32 && from < count) {
    memcpy(&found, &fibers[from].slot, sizeof(T));
  } else {
    fault = mixed_shuffle;
  }
  wait(at_warp);
  return found;
}

}  // namespace emu

static inline void __syncthreads() { emu::wait(emu::at_barrier); }
static inline void __syncwarp(unsigned = 0xffffffffu) { emu::wait(emu::at_warp); }
// Threads of a block run in turns, blocks one after another: nothing comes in between.
template <typename T>
static inline T atomicAdd(T* target, T value) {
  const T before = *target;
  *target = before + value;
  return before;
}
template <typename T>
static inline T atomicCAS(T* target, T expected, T value) {
  const T before = *target;
  if (before == expected) *target = value;
  return before;
}
static inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }

template <typename T>
static inline T __shfl_xor_sync(unsigned, T value, int mask) {
  return emu::exchange(value, (emu::current % 32) ^ mask);
}
template <typename T>
static inline T __shfl_down_sync(unsigned, T value, int delta) {
  int lane = emu::current % 32;
  return emu::exchange(value, lane + delta < 32 ? lane + delta : lane);
}

// An array ends where memory that may not be touched begins, and far accesses on both sides fall into such memory too.
static const size_t emu_guard = 64 << 20;
static size_t emu_room(size_t bytes) {
  size_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}
extern "C" void* emu_malloc(size_t bytes) {
  size_t rounded = (bytes + 15) / 16 * 16, room = emu_room(rounded);
  char* base = (char*)mmap(nullptr, room + 2 * emu_guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  mprotect(base + emu_guard, room, PROT_READ | PROT_WRITE);
  memset(base + emu_guard, 0xff, room);
  return base + emu_guard + room - rounded;
}
extern "C" void emu_free(void* pointer, size_t bytes) {
  size_t rounded = (bytes + 15) / 16 * 16, room = emu_room(rounded);
  munmap((char*)pointer + rounded - room - emu_guard, room + 2 * emu_guard);
}
