// A stand-in for libcuda.so.1: the driver calls that pycuda and polyml make, on one CPU thread, so that pycuda itself runs where no GPU is.
//
// Work of a stream is done as late as the rules allow: when somebody waits for it, in the order that streams and events ask for. So whatever is not waited for
// is not there. STANDIN_ORDER=early: at once. STANDIN_BYTES: memory of the device. A "cubin" is a library that g++ has made of the kernels (standin_nvcc.py).
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_BINARY = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
typedef std::recursive_mutex Mutex;
Mutex mutex;

struct Stream;
struct Item {
  std::function<void()> run;
  std::vector<std::pair<std::shared_ptr<Stream>, size_t>> behind;
};
struct Stream {
  bool blocking = true;
  size_t first = 0;  // how much is done
  std::deque<Item> items;
  size_t end() const { return first + items.size(); }
};
struct Event {
  std::shared_ptr<Stream> stream;
  size_t position = 0;
};
struct Module {
  void* library;
  int file;
};
struct Function {
  int (*launch)(const unsigned*, unsigned, const unsigned long long*);
};

std::shared_ptr<Stream> standard = std::make_shared<Stream>(), of_thread = std::make_shared<Stream>();
std::map<void*, std::shared_ptr<Stream>> streams;
std::set<Event*> events;
std::set<Module*> modules;
std::map<Module*, std::map<std::string, Function*>> functions;
std::map<uintptr_t, size_t> memory, pinned;
size_t used = 0;
int fault = SUCCESS, retained = 0;
unsigned turn = 0;
thread_local std::vector<void*> current;
char context_tag;

size_t total() {
  const char* text = getenv("STANDIN_BYTES");
  return text ? strtoull(text, nullptr, 10) : (size_t)256 << 20;
}
bool early() {
  const char* text = getenv("STANDIN_ORDER");
  return text && !strcmp(text, "early");
}

void run_until(std::shared_ptr<Stream> stream, size_t position) {
  while (stream->first < position && !stream->items.empty()) {
    Item item = std::move(stream->items.front());
    for (auto& [other, end] : item.behind) run_until(other, end);
    if (item.run) item.run();
    stream->items.pop_front();
    ++stream->first;
  }
}
void run_all() {
  run_until(standard, standard->end());
  run_until(of_thread, of_thread->end());
  for (auto& [handle, stream] : streams) run_until(stream, stream->end());
}

void add(std::shared_ptr<Stream> stream, std::function<void()> run) {
  Item item{std::move(run), {}};
  if (stream == standard) {
    for (auto& [handle, other] : streams)
      if (other->blocking) item.behind.push_back({other, other->end()});
    item.behind.push_back({of_thread, of_thread->end()});
  } else if (stream->blocking) {
    item.behind.push_back({standard, standard->end()});
  }
  stream->items.push_back(std::move(item));
  if (early()) run_until(stream, stream->end());
}

std::shared_ptr<Stream> stream_of(void* handle) {
  if (handle == nullptr || handle == (void*)1) return standard;
  if (handle == (void*)2) return of_thread;
  auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second;
}

// Whether so many bytes lie in one piece of the device's memory; if not, that is a fault of the work.
bool inside(uintptr_t address, size_t bytes) {
  auto next = memory.upper_bound(address);
  if (next != memory.begin()) {
    --next;
    if (address + bytes <= next->first + next->second) return true;
  }
  fprintf(stderr, "stand-in: %zu bytes at %#zx are not the device's\n", bytes, (size_t)address);
  fault = LAUNCH_FAILED;
  return false;
}
bool is_pinned(const void* address) {
  auto next = pinned.upper_bound((uintptr_t)address);
  return next != pinned.begin() && (uintptr_t)address < std::prev(next)->first + std::prev(next)->second;
}

const size_t guard = 1 << 20, page = 4096;
size_t room(size_t bytes) { return (bytes + page - 1) / page * page; }

struct Lock {
  std::lock_guard<Mutex> held{mutex};
};
}  // namespace

#define ENTER        \
  Lock lock;         \
  if (fault) return fault; \
  if (current.empty()) return INVALID_CONTEXT;
#define STREAM(handle)                \
  auto stream = stream_of(handle);    \
  if (!stream) return INVALID_HANDLE;

// -- what tests ask ---------------------------------------------------------------------------------------------------------------

extern "C" __attribute__((visibility("default"))) long standin_live(const char* what) {
  Lock lock;
  std::string name = what;
  if (name == "memory") return memory.size();
  if (name == "bytes") return used;
  if (name == "pinned") return pinned.size();
  if (name == "events") return events.size();
  if (name == "streams") return streams.size();
  if (name == "modules") return modules.size();
  if (name == "contexts") return current.size();
  if (name == "waiting") {
    long waiting = standard->items.size() + of_thread->items.size();
    for (auto& [handle, stream] : streams) waiting += stream->items.size();
    return waiting;
  }
  return -1;
}

// -- devices and contexts ---------------------------------------------------------------------------------------------------------

API cuInit(unsigned) { return SUCCESS; }
API cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
API cuDeviceGet(int* device, int number) { return *device = number, number == 0 ? SUCCESS : 101; }
API cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
API cuDeviceGetName(char* name, int size, int) { return snprintf(name, size, "stand-in"), SUCCESS; }
API cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = total(), SUCCESS; }
API cuDeviceComputeCapability(int* major, int* minor, int) { return *major = 9, *minor = 0, SUCCESS; }
API cuDeviceGetAttribute(int* value, int attribute, int) {
  static const std::map<int, int> known = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 65535}, {6, 65535}, {7, 65535}, {8, 49152}, {10, 32}, {16, 16}, {39, 2048}, {75, 9}, {76, 0}};
  auto found = known.find(attribute);  // threads per block, of a warp, of a core; cores; compute capability
  *value = found == known.end() ? 0 : found->second;
  return SUCCESS;
}
API cuGetErrorString(int status, const char** text) {
  static std::string made;
  made = "error " + std::to_string(status) + " of the stand-in";
  return *text = made.c_str(), SUCCESS;
}
API cuDevicePrimaryCtxRetain(void** context, int) { return ++retained, *context = &context_tag, SUCCESS; }
API cuDevicePrimaryCtxRelease_v2(int) { return --retained, SUCCESS; }
API cuCtxPushCurrent_v2(void* context) { return current.push_back(context), SUCCESS; }
API cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return INVALID_CONTEXT;
  if (context) *context = current.back();
  return current.pop_back(), SUCCESS;
}
API cuCtxGetDevice(int* device) { return *device = 0, current.empty() ? INVALID_CONTEXT : SUCCESS; }
API cuCtxGetApiVersion(void*, unsigned* version) { return *version = 13000, SUCCESS; }
API cuCtxSynchronize() {
  ENTER;
  run_all();
  return fault;
}

// -- memory -----------------------------------------------------------------------------------------------------------------------

API cuMemGetInfo_v2(size_t* free, size_t* all) {
  ENTER;
  return *free = total() - used, *all = total(), SUCCESS;
}
API cuMemAlloc_v2(uintptr_t* address, size_t bytes) {
  ENTER;
  if (bytes == 0) return INVALID_VALUE;
  if (used + bytes > total()) return OUT_OF_MEMORY;
  size_t rounded = (bytes + 255) / 256 * 256;
  char* base = (char*)mmap(nullptr, room(rounded) + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return OUT_OF_MEMORY;
  mprotect(base + guard, room(rounded), PROT_READ | PROT_WRITE);
  memset(base + guard, 0xff, room(rounded));
  *address = (uintptr_t)(base + guard + room(rounded) - rounded);
  memory[*address] = bytes;
  used += bytes;
  return SUCCESS;
}
API cuMemFree_v2(uintptr_t address) {  // does not wait: whoever frees memory that work still needs is found out
  ENTER;
  auto found = memory.find(address);
  if (found == memory.end()) return INVALID_VALUE;
  size_t rounded = (found->second + 255) / 256 * 256;
  munmap((char*)address + rounded - room(rounded) - guard, room(rounded) + 2 * guard);
  used -= found->second;
  memory.erase(found);
  return SUCCESS;
}
API cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  ENTER;
  *address = malloc(bytes);
  return pinned[(uintptr_t)*address] = bytes, SUCCESS;
}
API cuMemFreeHost(void* address) {
  ENTER;
  if (!pinned.erase((uintptr_t)address)) return INVALID_VALUE;
  return free(address), SUCCESS;
}

static int to_device(uintptr_t to, const void* from, size_t bytes, std::shared_ptr<Stream> stream) {
  if (is_pinned(from)) {  // read when the copy runs
    add(stream, [=] { if (inside(to, bytes)) memcpy((void*)to, from, bytes); });
  } else {
    std::string kept((const char*)from, bytes);
    add(stream, [=] { if (inside(to, bytes)) memcpy((void*)to, kept.data(), bytes); });
  }
  return fault;
}
static int to_host(void* to, uintptr_t from, size_t bytes, std::shared_ptr<Stream> stream) {
  add(stream, [=] { if (inside(from, bytes)) memcpy(to, (void*)from, bytes); });
  if (!is_pinned(to)) run_until(stream, stream->end());
  return fault;
}
API cuMemcpyHtoD_v2(uintptr_t to, const void* from, size_t bytes) {
  ENTER;
  return to_device(to, from, bytes, standard);
}
API cuMemcpyHtoDAsync_v2(uintptr_t to, const void* from, size_t bytes, void* handle) {
  ENTER;
  STREAM(handle);
  return to_device(to, from, bytes, stream);
}
API cuMemcpyDtoH_v2(void* to, uintptr_t from, size_t bytes) {
  ENTER;
  to_host(to, from, bytes, standard);
  run_until(standard, standard->end());
  return fault;
}
API cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t bytes, void* handle) {
  ENTER;
  STREAM(handle);
  return to_host(to, from, bytes, stream);
}
API cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void* handle) {
  ENTER;
  STREAM(handle);
  add(stream, [=] { if (inside(to, bytes) && inside(from, bytes)) memmove((void*)to, (void*)from, bytes); });
  return fault;
}
API cuMemcpyDtoD_v2(uintptr_t to, uintptr_t from, size_t bytes) { return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr); }
API cuMemsetD8Async(uintptr_t to, unsigned char value, size_t count, void* handle) {
  ENTER;
  STREAM(handle);
  add(stream, [=] { if (inside(to, count)) memset((void*)to, value, count); });
  return fault;
}
API cuMemsetD8_v2(uintptr_t to, unsigned char value, size_t count) { return cuMemsetD8Async(to, value, count, nullptr); }

// -- streams and events -----------------------------------------------------------------------------------------------------------

API cuStreamCreate(void** handle, unsigned flags) {
  ENTER;
  auto made = std::make_shared<Stream>();
  made->blocking = !(flags & 1);
  *handle = made.get();
  streams[*handle] = made;
  return SUCCESS;
}
API cuStreamDestroy_v2(void* handle) {
  ENTER;
  STREAM(handle);
  run_until(stream, stream->end());
  return streams.erase(handle), fault;
}
API cuStreamSynchronize(void* handle) {
  ENTER;
  STREAM(handle);
  return run_until(stream, stream->end()), fault;
}
API cuStreamQuery(void* handle) { return cuStreamSynchronize(handle); }
API cuEventCreate(Event** event, unsigned) {
  ENTER;
  return events.insert(*event = new Event), SUCCESS;
}
API cuEventDestroy_v2(Event* event) {
  ENTER;
  if (!events.erase(event)) return INVALID_HANDLE;
  delete event;
  return SUCCESS;
}
API cuEventRecord(Event* event, void* handle) {
  ENTER;
  STREAM(handle);
  if (!events.count(event)) return INVALID_HANDLE;
  add(stream, nullptr);
  return event->stream = stream, event->position = stream->end(), SUCCESS;
}
API cuEventSynchronize(Event* event) {
  ENTER;
  if (event->stream) run_until(event->stream, event->position);
  return fault;
}
API cuEventQuery(Event* event) { return cuEventSynchronize(event); }
API cuEventElapsedTime_v2(float* time, Event*, Event*) { return *time = 1.0f, SUCCESS; }
API cuEventElapsedTime(float* time, Event*, Event*) { return *time = 1.0f, SUCCESS; }
API cuStreamWaitEvent(void* handle, Event* event, unsigned) {
  ENTER;
  STREAM(handle);
  if (!events.count(event)) return INVALID_HANDLE;
  if (event->stream) {
    add(stream, nullptr);
    if (!stream->items.empty()) stream->items.back().behind.push_back({event->stream, event->position});
  }
  return SUCCESS;
}

// -- kernels ----------------------------------------------------------------------------------------------------------------------

API cuModuleLoadDataEx(Module** module, const char* image, unsigned, void*, void*) {
  ENTER;
  if (memcmp(image, "STAND-IN", 8)) return NO_BINARY;
  size_t bytes;
  memcpy(&bytes, image + 8, 8);
  int file = memfd_create("cubin", 0);
  if (write(file, image + 16, bytes) != (ssize_t)bytes) return NO_BINARY;
  void* library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "stand-in: %s\n", dlerror()), NO_BINARY;
  return modules.insert(*module = new Module{library, file}), SUCCESS;
}
API cuModuleLoadData(Module** module, const char* image) { return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr); }
API cuModuleUnload(Module* module) {
  ENTER;
  if (!modules.erase(module)) return INVALID_HANDLE;
  run_all();
  functions.erase(module);
  dlclose(module->library);
  close(module->file);
  delete module;
  return fault;
}
API cuModuleGetFunction(Function** function, Module* module, const char* name) {
  ENTER;
  void* found = dlsym(module->library, (std::string("launch_") + name).c_str());
  if (!found) return NOT_FOUND;
  Function*& made = functions[module][name];
  if (!made) made = new Function{(int (*)(const unsigned*, unsigned, const unsigned long long*))found};
  return *function = made, SUCCESS;
}
API cuFuncSetBlockShape(Function*, int, int, int) { return SUCCESS; }
API cuFuncSetSharedSize(Function*, unsigned) { return SUCCESS; }
API cuFuncGetAttribute(int* value, int attribute, Function*) {
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;  // threads of a block at most; registers
  return SUCCESS;
}
API cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned, void* handle, void**, void** extra) {
  ENTER;
  STREAM(handle);
  const char* buffer = nullptr;
  size_t bytes = 0;
  for (; extra && *extra; extra += 2) {
    if (extra[0] == (void*)1) buffer = (const char*)extra[1];
    if (extra[0] == (void*)2) bytes = *(size_t*)extra[1];
  }
  std::vector<unsigned long long> words(bytes / 8 + 1);
  memcpy(words.data(), buffer, bytes);
  add(stream, [=] {
    const unsigned extents[6] = {gx, gy, gz, bx, by, bz};
    int status = function->launch(extents, turn++ % 4, words.data());
    if (status) fprintf(stderr, "stand-in: a kernel fails with %d\n", status), fault = LAUNCH_FAILED;
  });
  return fault;
}
