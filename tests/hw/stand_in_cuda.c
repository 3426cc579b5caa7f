/* libcuda.so.1 for machines without a driver: just enough for kvikio's way through host memory. "GPU" memory is host
 * memory from stand_in_alloc(); a copy is a memcpy, streams and events are always finished; it claims CUDA 12.4, so that fewer symbols are asked for. Built by the test that uses it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2 };
enum { ASK_CONTEXT = 1, ASK_KIND = 2, ASK_DEVICE_POINTER = 3, ASK_ORDINAL = 9, KIND_DEVICE = 2 };

static struct { address first, end; } given[256];
static int n_given, context;
long stand_in_copies;

void *stand_in_alloc(size_t size) {
    void *memory = NULL;
    if (n_given == 256 || posix_memalign(&memory, 1 << 16, size)) return NULL;
    given[n_given].first = (address)(uintptr_t)memory;
    given[n_given++].end = (address)(uintptr_t)memory + size;
    return memory;
}

static int range_of(address at) {
    for (int i = 0; i < n_given; i++)
        if (given[i].first <= at && at < given[i].end) return i;
    return -1;
}

static int copied(void *to, const void *from, size_t size) {
    __sync_fetch_and_add(&stand_in_copies, 1);
    memcpy(to, from, size);
    return OK;
}

int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t n, void *s) { return copied((void *)(uintptr_t)to, from, n); }
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t n, void *s) { return copied(to, (void *)(uintptr_t)from, n); }
int cuMemcpyAsync(address to, address from, size_t n, void *s) {
    return copied((void *)(uintptr_t)to, (void *)(uintptr_t)from, n);
}

static int answer(int question, void *out, address at) {
    int device = range_of(at) >= 0;
    switch (question) {
    case ASK_CONTEXT: *(void **)out = device ? &context : NULL; return OK;
    case ASK_KIND: *(unsigned *)out = device ? KIND_DEVICE : 0; return OK;
    case ASK_DEVICE_POINTER: *(address *)out = device ? at : 0; return OK;
    case ASK_ORDINAL: *(int *)out = device ? 0 : -2; return OK;
    default: return INVALID;
    }
}
int cuPointerGetAttribute(void *out, int question, address at) { return range_of(at) < 0 ? INVALID : answer(question, out, at); }
int cuPointerGetAttributes(unsigned n, int *questions, void **outs, address at) {
    for (unsigned i = 0; i < n; i++) answer(questions[i], outs[i], at);
    return OK;
}
int cuMemGetAddressRange_v2(address *first, size_t *size, address at) {
    int i = range_of(at);
    if (i < 0) return INVALID;
    if (first) *first = given[i].first;
    if (size) *size = given[i].end - given[i].first;
    return OK;
}

int cuMemHostAlloc(void **out, size_t n, unsigned f) { return posix_memalign(out, 4096, n) ? OUT_OF_MEMORY : OK; }
int cuMemFreeHost(void *p) { free(p); return OK; }
int cuMemHostRegister_v2(void *p, size_t n, unsigned f) { return OK; }
int cuMemHostUnregister(void *p) { return OK; }
int cuInit(unsigned f) { return OK; }
int cuDriverGetVersion(int *v) { *v = 12040; return OK; }
int cuDeviceGet(int *d, int i) { *d = i; return OK; }
int cuDeviceGetCount(int *n) { *n = 1; return OK; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = 0; return OK; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = &context; return OK; }
int cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
int cuCtxCreate_v2(void **c, unsigned f, int d) { *c = &context; return OK; }
int cuCtxCreate_v4(void **c, void *p, unsigned f, int d) { *c = &context; return OK; }
int cuCtxDestroy_v2(void *c) { return OK; }
int cuCtxPushCurrent_v2(void *c) { return OK; }
int cuCtxPopCurrent_v2(void **c) { *c = &context; return OK; }
int cuCtxGetCurrent(void **c) { *c = &context; return OK; }
int cuCtxGetDevice(int *d) { *d = 0; return OK; }
int cuStreamSynchronize(void *s) { return OK; }
int cuStreamCreate(void **s, unsigned f) { *s = &context; return OK; }
int cuStreamDestroy_v2(void *s) { return OK; }
int cuEventCreate(void **e, unsigned f) { *e = &context; return OK; }
int cuEventDestroy_v2(void *e) { return OK; }
int cuEventRecord(void *e, void *s) { return OK; }
int cuEventSynchronize(void *e) { return OK; }
int cuEventQuery(void *e) { return OK; }
int cuLaunchHostFunc(void *s, void (*f)(void *), void *x) { f(x); return OK; }
int cuGetErrorName(int e, const char **s) { *s = "STAND_IN"; return OK; }
int cuGetErrorString(int e, const char **s) { *s = "an error of the stand-in"; return OK; }
