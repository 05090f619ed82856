/* Machine code that this machine has no instructions for, run by Bochs' CPU (bochscpu) within this process, on its memory and its stacks.

   Pages of such code may not be executed here: whoever calls into them, or returns, causes a SIGSEGV, whose handler goes on in Bochs with the same
   registers. When Bochs jumps out of them, the processor goes on with Bochs' registers. So a call has no frame that anybody must keep, and calls
   nest in any way. One thread at a time runs in Bochs.

   Bochs' memory is this process's, a gigabyte of addresses at a time: its page tables are made up when they are read. What Bochs asks of its
   surroundings (bx_instr_*, mem_*, sim_*) is defined here, in front of what bochscpu has, by being loaded before it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

/* Bochs */

static void (*cpu_new)(uint32_t);
static void (*cpu_loop)(uint32_t);
static void (*cpu_bail)(uint32_t);
static void (*cpu_set_killbit)(uint32_t), (*cpu_clear_killbit)(uint32_t);
static uint64_t (*cpu_get_reg64)(uint32_t, uint32_t), (*cpu_get_pc)(uint32_t);
static void (*cpu_set_reg64)(uint32_t, uint32_t, uint64_t), (*cpu_set_pc)(uint32_t, uint64_t), (*cpu_set_sp)(uint32_t, uint64_t);
static void (*cpu_set_eflags)(uint32_t, uint32_t);
static void (*cpu_get_zmm)(uint32_t, uint32_t, uint64_t *), (*cpu_set_zmm)(uint32_t, uint32_t, const uint64_t *);
static void (*cpu_set_mxcsr)(uint32_t, uint32_t);
static void (*flush_instructions)(void);
static void *(*sim_new_param_enum)(const char *, const char *const *, uint32_t);
static void *(*named_parameter)(const char *);

struct context { /* as the assembly below has it */
    uint64_t general[16], rip, stack;
    uint32_t mxcsr, unused;
    uint8_t vectors[8][32];
};

static __thread struct context *context __attribute__((tls_model("initial-exec")));
static pthread_key_t contexts;
static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
static const size_t STACK = 1 << 20;

/* Pages of code for Bochs */

enum { PIECES = 1 << 14 };
static struct { uint64_t start, end; } pieces[PIECES];
static size_t last, used;

static int emulated(uint64_t address) {
    size_t k = __atomic_load_n(&last, __ATOMIC_RELAXED), n = __atomic_load_n(&used, __ATOMIC_ACQUIRE);
    if (pieces[k].start <= address && address < pieces[k].end) return 1;
    for (k = 0; k < n; k++)
        if (pieces[k].start <= address && address < pieces[k].end) {
            __atomic_store_n(&last, k, __ATOMIC_RELAXED);
            return 1;
        }
    return 0;
}

static void catch_faults(void);

/* From now on the code in these pages is Bochs'. Returns what to forget it by, or -1. */
int emulate(uint64_t start, uint64_t bytes) {
    uint64_t first = start & ~4095ull, end = (start + bytes + 4095) & ~4095ull;
    int found = -1;
    pthread_mutex_lock(&running);
    for (int k = 0; k < PIECES && found < 0; k++)
        if (!pieces[k].end) found = k;
    if (found >= 0 && !mprotect((void *)first, end - first, PROT_READ)) {
        flush_instructions();
        catch_faults();
        pieces[found].start = first;
        pieces[found].end = end;
        if ((size_t)found >= used) __atomic_store_n(&used, found + 1, __ATOMIC_RELEASE);
    } else
        found = -1;
    pthread_mutex_unlock(&running);
    return found;
}

void forget(int piece) {
    pthread_mutex_lock(&running);
    pieces[piece].start = pieces[piece].end = 0;
    pthread_mutex_unlock(&running);
}

/* From the processor to Bochs and back */

void into_bochs(void);
__asm__(".text\n"
        ".globl into_bochs\n"
        ".type into_bochs, @function\n"
        "into_bochs:\n" /* r11: where; r10 and r11 hold nothing at a call or a return */
        "  mov context@gottpoff(%rip), %r10\n"
        "  mov %fs:(%r10), %r10\n"
        "  mov %rax, 0(%r10)\n  mov %rcx, 8(%r10)\n  mov %rdx, 16(%r10)\n  mov %rbx, 24(%r10)\n"
        "  mov %rsp, 32(%r10)\n  mov %rbp, 40(%r10)\n  mov %rsi, 48(%r10)\n  mov %rdi, 56(%r10)\n"
        "  mov %r8, 64(%r10)\n  mov %r9, 72(%r10)\n  mov %r12, 96(%r10)\n  mov %r13, 104(%r10)\n"
        "  mov %r14, 112(%r10)\n  mov %r15, 120(%r10)\n  mov %r11, 128(%r10)\n"
        "  stmxcsr 144(%r10)\n"
        "  vmovups %ymm0, 152(%r10)\n  vmovups %ymm1, 184(%r10)\n  vmovups %ymm2, 216(%r10)\n  vmovups %ymm3, 248(%r10)\n"
        "  vmovups %ymm4, 280(%r10)\n  vmovups %ymm5, 312(%r10)\n  vmovups %ymm6, 344(%r10)\n  vmovups %ymm7, 376(%r10)\n"
        "  vzeroupper\n"
        "  mov 136(%r10), %rsp\n"
        "  mov %r10, %rbx\n  mov %r10, %rdi\n"
        "  call run_bochs\n"
        "  mov %rbx, %r10\n"
        "  vmovups 152(%r10), %ymm0\n  vmovups 184(%r10), %ymm1\n  vmovups 216(%r10), %ymm2\n  vmovups 248(%r10), %ymm3\n"
        "  vmovups 280(%r10), %ymm4\n  vmovups 312(%r10), %ymm5\n  vmovups 344(%r10), %ymm6\n  vmovups 376(%r10), %ymm7\n"
        "  ldmxcsr 144(%r10)\n"
        "  mov 0(%r10), %rax\n  mov 8(%r10), %rcx\n  mov 16(%r10), %rdx\n  mov 24(%r10), %rbx\n"
        "  mov 32(%r10), %rsp\n  mov 40(%r10), %rbp\n  mov 48(%r10), %rsi\n  mov 56(%r10), %rdi\n"
        "  mov 64(%r10), %r8\n  mov 72(%r10), %r9\n  mov 96(%r10), %r12\n  mov 104(%r10), %r13\n"
        "  mov 112(%r10), %r14\n  mov 120(%r10), %r15\n  mov 128(%r10), %r11\n"
        "  jmp *%r11\n"
        ".size into_bochs, .-into_bochs\n");

__attribute__((used, visibility("hidden"))) void run_bochs(struct context *c) {
    uint64_t vector[8] = {0};
    pthread_mutex_lock(&running);
    for (int k = 0; k < 16; k++) cpu_set_reg64(0, k, c->general[k]);
    cpu_set_sp(0, c->general[4]);
    cpu_set_pc(0, c->rip);
    cpu_set_eflags(0, 2);
    cpu_set_mxcsr(0, c->mxcsr);
    for (int k = 0; k < 8; k++) {
        memcpy(vector, c->vectors[k], 32);
        cpu_set_zmm(0, k, vector);
    }
    cpu_clear_killbit(0);
    cpu_loop(0);
    for (int k = 0; k < 16; k++) c->general[k] = cpu_get_reg64(0, k);
    c->rip = cpu_get_pc(0);
    for (int k = 0; k < 8; k++) {
        cpu_get_zmm(0, k, vector);
        memcpy(c->vectors[k], vector, 32);
    }
    pthread_mutex_unlock(&running);
}

static void release(void *c) {
    context = NULL;
    munmap(c, STACK);
}

static struct sigaction before;

static void on_fault(int number, siginfo_t *info, void *where) {
    ucontext_t *u = where;
    uint64_t rip = u->uc_mcontext.gregs[REG_RIP];
    if ((uint64_t)info->si_addr == rip && emulated(rip)) {
        if (!context) {
            char *piece = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (piece == MAP_FAILED) abort();
            context = (struct context *)piece;
            context->stack = (uint64_t)piece + STACK - 64;
            pthread_setspecific(contexts, piece);
        }
        u->uc_mcontext.gregs[REG_R11] = rip;
        u->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)into_bochs;
        return;
    }
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, where);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else
        signal(SIGSEGV, SIG_DFL);
}

/* Whoever else catches them (faulthandler, when a test run begins) comes after us. */
static void catch_faults(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER}, now;
    sigaction(SIGSEGV, NULL, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault) return;
    before = now;
    sigaction(SIGSEGV, &action, NULL);
}

/* Memory */

static const uint64_t TABLES = 0xff00000000ull, GIB = 1ull << 30;
enum { CHUNKS = 1000 };
static uint64_t chunks[CHUNKS]; /* gigabytes of this process, one more than their numbers */

static uint64_t chunk_of(uint64_t number) {
    for (uint64_t k = 0; k < CHUNKS; k++) {
        if (!chunks[k]) chunks[k] = number + 1;
        if (chunks[k] == number + 1) return k;
    }
    abort();
}

uint8_t *mem_guest_to_host(uint32_t cpu, uint64_t address, uint32_t access) {
    uint64_t chunk = (address & 0xfffffffffffffull) >> 30;
    if (chunk >= CHUNKS || !chunks[chunk]) abort();
    return (uint8_t *)(((chunks[chunk] - 1) << 30) | (address & (GIB - 1)));
}

void mem_read_phy(uint32_t cpu, uint64_t address, uint32_t bytes, uint8_t *into) {
    if (address >= TABLES) { /* present, writable, accessed, dirty; a gigabyte's entry is the last one */
        uint64_t table = (address - TABLES) >> 12, entry = (address >> 3) & 511, value = 0;
        if (table == 0 && entry < 256) value = (TABLES + ((entry + 1) << 12)) | 0x23;
        if (table > 0) value = chunk_of((table - 1) << 9 | entry) << 30 | 0xe3;
        memcpy(into, &value, bytes);
    } else
        memcpy(into, mem_guest_to_host(cpu, address, 0), bytes);
}

void mem_write_phy(uint32_t cpu, uint64_t address, uint32_t bytes, const uint8_t *from) {
    if (address < TABLES) memcpy(mem_guest_to_host(cpu, address, 1), from, bytes);
}

/* What Bochs tells of its steps */

void bx_instr_ucnear_branch(uint32_t cpu, uint32_t what, uint64_t from, uint64_t to) {
    if (!emulated(to)) {
        cpu_set_killbit(0);
        cpu_bail(0);
    }
}

void bx_instr_exception(uint32_t cpu, uint32_t vector, uint32_t error) {
    uint64_t rip = cpu_get_pc(0);
    fprintf(stderr, "Bochs: exception %u (error %u) before %#lx:", vector, error, (unsigned long)rip);
    for (int k = -16; k < 16; k++) fprintf(stderr, "%s %02x", k ? "" : " |", ((uint8_t *)rip)[k]);
    fprintf(stderr, "\n");
    abort();
}

void bx_instr_after_execution(uint32_t cpu, void *i) {}
void bx_instr_repeat_iteration(uint32_t cpu, void *i) {}
void bx_instr_cnear_branch_taken(uint32_t cpu, uint64_t from, uint64_t to) {}
void bx_instr_cnear_branch_not_taken(uint32_t cpu, uint64_t from, uint64_t to) {}
void bx_instr_phy_access(uint32_t cpu, uint64_t a, uint32_t bytes, uint32_t kind, uint32_t access) {}

/* What is executed, and which lines the caches would not have held */

enum { LEVELS = 3, LINE = 64 };
static struct {
    uint64_t instructions, reads, writes, straddling, missed[LEVELS], requests, requested[LEVELS]; /* as emulated.py has it */
} counts;
static struct { uint64_t ways, sets, *lines; } levels[LEVELS]; /* of each set, the newest line first; no sets without counting */

/* From now on, with caches of so many bytes, at first empty. Returns whether there is memory for that. */
int count(const uint64_t *bytes) {
    memset(&counts, 0, sizeof counts);
    for (int k = 0; k < LEVELS; k++) {
        free(levels[k].lines);
        levels[k].ways = k ? 16 : bytes[0] / 4096; /* L1 finds its sets by what a page's offset says */
        levels[k].sets = bytes[k] / (LINE * levels[k].ways);
        levels[k].lines = calloc(levels[k].sets * levels[k].ways, sizeof(uint64_t));
        if (!levels[k].lines) return 0;
    }
    return 1;
}

/* Since the last time. */
void counted(void *into) {
    memcpy(into, &counts, sizeof counts);
    memset(&counts, 0, sizeof counts);
}

/* Whether the level held the line, which it holds from now on. */
static int held(int level, uint64_t line) {
    uint64_t ways = levels[level].ways, *set = levels[level].lines + line % levels[level].sets * ways, k = 0;
    while (k < ways - 1 && set[k] != line) k++;
    int found = set[k] == line;
    memmove(set + 1, set, k * sizeof *set);
    set[0] = line;
    return found;
}

static void fetch(uint64_t line, int level, uint64_t *missed) {
    for (; level < LEVELS && !held(level, line); level++) missed[level]++;
}

void bx_instr_before_execution(uint32_t cpu, void *i) { counts.instructions++; }

void bx_instr_lin_access(uint32_t cpu, uint64_t address, uint64_t physical, uint32_t bytes, uint32_t kind, uint32_t access) {
    uint64_t first = address / LINE, end = (address + bytes - 1) / LINE;
    if (!levels[0].sets || access == 2) return; /* 2: an instruction's bytes; a bit of 1: written */
    *(access & 1 ? &counts.writes : &counts.reads) += 1;
    counts.straddling += first != end;
    for (uint64_t line = first; line <= end; line++) fetch(line, 0, counts.missed);
}

/* what: prefetchnta, t0, t1, t2 from 0 on, then prefetchw. */
void bx_instr_prefetch_hint(uint32_t cpu, uint32_t what, uint32_t segment, uint64_t offset) {
    if (!levels[0].sets) return;
    counts.requests++;
    fetch(offset / LINE, what == 2 || what == 3, counts.requested);
}

/* What bochscpu-python 0.4.0 has wrong */

struct instruction { /* Bochs' bxInstruction_c, as this library was built */
    void (*execute[2])(void *);
    uint8_t unused[20];
    int32_t displacement;
};

static void *refuse, *gather[2][2], *scatter[2][2]; /* indices of 32 or 64 bits; elements of as many */

/* Gathers and scatters whose indices are in registers from 16 on are taken for instructions with an operand too many. */
void bx_instr_opcode(uint32_t cpu, void *i, const uint8_t *code, uint32_t bytes, uint32_t is32, uint32_t is64) {
    struct instruction *decoded = i;
    if ((void *)decoded->execute[0] != refuse || code[0] != 0x62 || (code[1] & 7) != 2 || code[4] & 0x0c) return;
    int wide = code[2] >> 7;
    void *found = (code[4] & 0xf0) == 0x90 ? gather[code[4] & 1][wide] : (code[4] & 0xf0) == 0xa0 ? scatter[code[4] & 1][wide] : NULL;
    if (!found) return;
    for (int k = 0; k < 2; k++) *(void **)&decoded->execute[k] = found;
    if (code[5] >> 6 == 1) decoded->displacement = (int8_t)code[7] * (wide ? 8 : 4); /* counted in elements */
}

/* Masks of 16 bits are shifted by 15 as if that left nothing: `cmp $14, %ecx; ja`. Returns whether it is so. */
static int mend_shift(uint8_t *code) {
    for (int k = 0; code && k < 32; k++)
        if (code[k] == 0x83 && code[k + 1] == 0xf9 && code[k + 2] == 14 && code[k + 3] == 0x77) {
            uint64_t first = (uint64_t)code & ~4095ull, size = ((uint64_t)code + 64 - first + 4095) & ~4095ull;
            if (mprotect((void *)first, size, PROT_READ | PROT_WRITE | PROT_EXEC)) return 0;
            code[k + 2] = 15;
            return !mprotect((void *)first, size, PROT_READ | PROT_EXEC);
        }
    return 0;
}

static uint32_t model;

void *sim_get_param_enum(const char *name) {
    static const char *names[64];
    if (strcmp(name, "cpu.model")) return named_parameter(name);
    for (int k = 0; k < 63; k++) names[k] = "a CPU";
    return sim_new_param_enum("model", names, model);
}

unsigned long long __isoc23_strtoull(const char *text, char **end, int base) { return strtoull(text, end, base); } /* of newer C libraries */
int __isoc23_sscanf(const char *text, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int found = vsscanf(text, format, list);
    va_end(list);
    return found;
}

static void child(void) { pthread_mutex_init(&running, NULL); }

#define FIND(name) if (!(*(void **)&name = dlsym(library, #name))) return #name

/* Takes bochscpu's library. Returns NULL, or what is missing. */
const char *start(const char *path, uint32_t number) { /* Bochs' number of the CPU to be */
    model = number;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return dlerror();
    FIND(cpu_new); FIND(cpu_loop); FIND(cpu_bail); FIND(cpu_set_killbit); FIND(cpu_clear_killbit);
    FIND(cpu_get_reg64); FIND(cpu_get_pc); FIND(cpu_set_reg64); FIND(cpu_set_pc); FIND(cpu_set_sp); FIND(cpu_set_eflags);
    FIND(cpu_get_zmm); FIND(cpu_set_zmm); FIND(cpu_set_mxcsr); FIND(sim_new_param_enum);
    *(void **)&flush_instructions = dlsym(library, "_Z12flushICachesv");
    *(void **)&named_parameter = dlsym(library, "sim_get_param_enum");
    static const char *const shifts[] = {"_ZN8BX_CPU_C18KSHIFTLW_KGwKEwIbREP15bxInstruction_c", "_ZN8BX_CPU_C18KSHIFTRW_KGwKEwIbREP15bxInstruction_c"};
    for (int k = 0; k < 2; k++)
        if (!mend_shift(dlsym(library, shifts[k]))) return shifts[k];
    refuse = dlsym(library, "_ZN8BX_CPU_C7BxErrorEP15bxInstruction_c");
    for (int k = 0; k < 4; k++) {
        char name[64];
        int q = k >> 1, wide = k & 1;
        snprintf(name, sizeof name, "_ZN8BX_CPU_C23VGATHER%cP%c_MASK_Vp%cVSibEP15bxInstruction_c", "DQ"[q], "SD"[wide], "sd"[wide]);
        if (!(gather[q][wide] = dlsym(library, name))) return "a gather";
        snprintf(name, sizeof name, "_ZN8BX_CPU_C24VSCATTER%cP%c_MASK_VSibVp%cEP15bxInstruction_c", "DQ"[q], "SD"[wide], "sd"[wide]);
        if (!(scatter[q][wide] = dlsym(library, name))) return "a scatter";
    }
    void (*set32)(uint32_t, uint32_t);
    void (*set64)(uint32_t, uint64_t);
    void (*mode)(uint32_t);
    void (*segment)(uint32_t, uint32_t, uint32_t, uint16_t, uint64_t, uint32_t, uint16_t);
    cpu_new(0);
    *(void **)&segment = dlsym(library, "cpu_set_seg");
    for (int k = 0; k < 6; k++) segment(0, k, 1, k == 1 ? 8 : 16, 0, 0xffffffff, k == 1 ? 0xa09b : 0xc093);
    *(void **)&set32 = dlsym(library, "cpu_set_cr0"); set32(0, 0x80010033);
    *(void **)&set64 = dlsym(library, "cpu_set_cr3"); set64(0, TABLES);
    *(void **)&set32 = dlsym(library, "cpu_set_cr4"); set32(0, 0x40620);
    *(void **)&set32 = dlsym(library, "cpu_set_efer"); set32(0, 0xd00);
    *(void **)&set32 = dlsym(library, "cpu_set_xcr0"); set32(0, 0xe7);
    *(void **)&mode = dlsym(library, "cpu_set_mode"); mode(0);
    void (*set16)(uint32_t, uint16_t);
    *(void **)&set16 = dlsym(library, "cpu_set_fp_cw"); set16(0, 0x37f);
    *(void **)&set16 = dlsym(library, "cpu_set_fp_tw"); set16(0, 0xffff);
    void (*avx)(void);
    *(void **)&avx = dlsym(library, "_ZN8BX_CPU_C19handleAvxModeChangeEv"); avx();
    pthread_key_create(&contexts, release);
    pthread_atfork(NULL, NULL, child);
    catch_faults();
    return NULL;
}
